// Two generations of the AI SDK with their Anthropic providers, unmodified, against the server of $CODEEXEC_URL.
import assert from "node:assert/strict";
import test from "node:test";

const GENERATIONS = [
  [7, "ai", "@ai-sdk/anthropic"],
  [6, "ai-6", "@ai-sdk/anthropic-3"],
];
const baseURL = process.env.CODEEXEC_URL + "/v1";
const fence = (kind, text) => "```" + kind + "\n" + text + "\n```\n";
const bash = (command) => fence("bash", command);
const outputs = (results) => results.map((result) => result.output);
const within = (id) => ({ providerOptions: { anthropic: { container: { id } } } });

for (const [generation, sdk, adapter] of GENERATIONS) {
  const { APICallError, generateText, jsonSchema, stepCountIs, streamText, tool, uploadFile } = await import(sdk);
  const { createAnthropic, forwardAnthropicContainerIdFromLastStep } = await import(adapter);
  const provider = createAnthropic({ baseURL, apiKey: process.env.CODEEXEC_KEY });
  const code = provider.tools.codeExecution_20250825();
  const base = { model: provider("demo"), maxRetries: 0, maxOutputTokens: 1024, tools: { code_execution: code } };
  const ask = (prompt, fields = {}) => ({ ...base, prompt, ...fields });
  const named = jsonSchema({ type: "object", properties: { name: { type: "string" } }, required: ["name"] });
  const length = (asked, fields = {}) =>
    tool({ description: "The length of a name.", inputSchema: named, execute: ({ name }) => (asked.push(name), String(name.length)), ...fields });

  test(`AI SDK ${generation}: a command's text, call and result come in one step`, async () => {
    const answer = await generateText(ask(fence("text", "I compute.") + bash("echo $((6 * 7)); echo oh >&2; exit 3") + fence("text", "It is done.")));
    assert.equal(answer.finishReason, "stop");
    assert.match(answer.text, /^I compute\.\s*It is done\.$/);
    assert.equal(answer.steps.length, 1);
    const [call] = answer.toolCalls;
    assert.deepEqual(call.input, { type: "bash_code_execution", command: "echo $((6 * 7)); echo oh >&2; exit 3" });
    assert.ok(call.providerExecuted && !call.invalid);
    assert.deepEqual(answer.toolResults.map((result) => result.toolCallId), [call.toolCallId]);
    assert.deepEqual(outputs(answer.toolResults), [{ type: "bash_code_execution_result", content: [], stdout: "42\n", stderr: "oh\n", return_code: 3 }]);
    assert.ok(answer.usage.inputTokens > 0 && answer.usage.outputTokens > 0);
    assert.deepEqual(answer.warnings, []);
  });

  test(`AI SDK ${generation}: the container of the provider's metadata is used again`, async () => {
    const first = await generateText(ask(bash("echo 12 > /tmp/n")));
    const { id, expiresAt } = first.providerMetadata.anthropic.container;
    assert.match(id, /^container_/);
    assert.ok(Date.parse(expiresAt) > Date.now());
    const second = await generateText(ask(bash("cat /tmp/n"), within(id)));
    assert.equal(second.toolResults[0].output.stdout, "12\n");
    assert.equal(second.providerMetadata.anthropic.container.id, id);
    const third = await generateText(ask(bash("cat /tmp/n")));
    assert.notEqual(third.providerMetadata.anthropic.container.id, id);
    assert.equal(third.toolResults[0].output.return_code, 1);
  });

  test(`AI SDK ${generation}: a conversation goes on with what the first answer held`, async () => {
    const question = { role: "user", content: bash("echo 12 > /tmp/n; cat /tmp/n") };
    const first = await generateText(ask(undefined, { messages: [question] }));
    const messages = [question, ...first.response.messages, { role: "user", content: bash("cat /tmp/n") }];
    const second = await generateText(ask(undefined, { messages, ...within(first.providerMetadata.anthropic.container.id) }));
    assert.deepEqual(outputs(second.toolResults).map((output) => output.stdout), ["12\n"]);
  });

  test(`AI SDK ${generation}: a stream's parts come in order and make the same answer`, async () => {
    const script = fence("text", "I compute.") + bash("echo 42") + fence("text", "It is done.");
    const answer = streamText(ask(script));
    const kinds = [];
    for await (const part of answer.fullStream) {
      assert.notEqual(part.type, "error", String(part.error));
      if (part.type !== kinds.at(-1) && part.type !== "custom") kinds.push(part.type);
    }
    assert.deepEqual(kinds, [
      ...["start", "start-step", "text-start", "text-delta", "text-end"],
      ...["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result"],
      ...["text-start", "text-delta", "text-end", "finish-step", "finish"],
    ]);
    const created = await generateText(ask(script));
    assert.equal(await answer.text, created.text);
    assert.deepEqual(outputs(await answer.toolResults), outputs(created.toolResults));
    assert.deepEqual((await answer.toolCalls).map((call) => call.input), [{ type: "bash_code_execution", command: "echo 42" }]);
    assert.equal(await answer.finishReason, "stop");
    const { container } = (await answer.providerMetadata).anthropic;
    const next = await generateText(ask(bash("echo again"), within(container.id)));
    assert.equal(next.providerMetadata.anthropic.container.id, container.id);
  });

  test(`AI SDK ${generation}: the first version of the tool runs Python, streamed and not`, async () => {
    const asked = ask(fence("python", "print(6 * 7)"), { tools: { code_execution: provider.tools.codeExecution_20250522() } });
    const created = await generateText(asked);
    const streamed = streamText(asked);
    await streamed.consumeStream();
    for (const [calls, results] of [[created.toolCalls, created.toolResults], [await streamed.toolCalls, await streamed.toolResults]]) {
      assert.equal(calls[0].input.code, "print(6 * 7)\n");
      assert.deepEqual(outputs(results), [{ type: "code_execution_result", content: [], stdout: "42\n", stderr: "", return_code: 0 }]);
    }
  });

  test(`AI SDK ${generation}: the editor's calls have each result in its own shape, streamed and not`, async () => {
    const inputs = [
      { command: "create", path: "a.txt", file_text: "one\n" },
      { command: "str_replace", path: "a.txt", old_str: "one", new_str: "two" },
      { command: "view", path: "a.txt" },
    ];
    const asked = ask(fence("tool_use", inputs.map((input) => JSON.stringify({ name: "text_editor_code_execution", input })).join("\n")) + bash("cat a.txt"));
    const created = await generateText(asked);
    const streamed = streamText(asked);
    await streamed.consumeStream();
    for (const [calls, results] of [[created.toolCalls, created.toolResults], [await streamed.toolCalls, await streamed.toolResults]]) {
      assert.deepEqual(calls.slice(0, 3).map((call) => call.input), inputs.map((input) => ({ type: "text_editor_code_execution", ...input })));
      assert.ok(calls.every((call) => !call.invalid));
      const [made, replaced, viewed, printed] = outputs(results);
      assert.deepEqual(made, { type: "text_editor_code_execution_create_result", is_file_update: false });
      assert.deepEqual(replaced.lines, ["-one", "+two"]);
      assert.deepEqual([viewed.content, viewed.file_type, viewed.num_lines, viewed.start_line, viewed.total_lines], ["two", "text", 1, 1, 1]);
      assert.equal(printed.stdout, "two\n");
    }
  });

  test(`AI SDK ${generation}: an editor's error is the call's result, and a conversation with it goes on`, async () => {
    const view = JSON.stringify({ name: "text_editor_code_execution", input: { command: "view", path: "missing" } });
    const question = { role: "user", content: fence("tool_use", view) };
    const first = await generateText(ask(undefined, { messages: [question] }));
    assert.equal(first.toolResults[0].output.error_code, "file_not_found");
    const messages = [question, ...first.response.messages, { role: "user", content: bash("echo on") }];
    const second = await generateText(ask(undefined, { messages }));
    assert.equal(second.toolResults[0].output.stdout, "on\n");
  });

  test(`AI SDK ${generation}: a client's tool and the code tool work in one loop, one after the other and in one turn`, async () => {
    const client = fence("tool_use", JSON.stringify({ name: "length", input: { name: "east" } }));
    const both = [
      { name: "bash_code_execution", input: { command: "cat /tmp/n" } },
      { name: "length", input: { name: "north" } },
    ].map((call) => JSON.stringify(call));
    for (const run of [generateText, streamText]) {
      const asked = [];
      const loop = { tools: { code_execution: code, length: length(asked) }, stopWhen: stepCountIs(6), prepareStep: forwardAnthropicContainerIdFromLastStep };
      const answer = run(ask(bash("echo 12 > /tmp/n") + client + fence("tool_use", both.join("\n")) + fence("text", "It is done."), loop));
      const { steps } = run === streamText ? { steps: await answer.steps } : await answer;
      assert.deepEqual(asked, ["east", "north"]);
      const results = steps.flatMap((step) => step.toolResults);
      assert.deepEqual(results.filter((result) => result.toolName === "length").map((result) => result.output), ["4", "5"]);
      const ran = results.filter((result) => result.toolName === "code_execution");
      assert.deepEqual(outputs(ran).map((output) => output.stdout), ["", "12\n"]);
      assert.deepEqual([steps.at(-1).finishReason, steps.at(-1).text], ["stop", "It is done."]);
    }
  });

  test(`AI SDK ${generation}: what Python code calls is answered by the loop, streamed and not`, async () => {
    const script = "import asyncio\nrows = await asyncio.gather(length(name='east'), length(name='north'))\nprint(rows)\nprint(await length(name='up'))";
    for (const run of [generateText, streamText]) {
      const asked = [];
      const callers = { providerOptions: { anthropic: { allowedCallers: ["code_execution_20260120"] } } };
      const tools = { code_execution: provider.tools.codeExecution_20260120(), length: length(asked, callers) };
      const answer = run(ask(fence("python", script), { tools, stopWhen: stepCountIs(6), prepareStep: forwardAnthropicContainerIdFromLastStep }));
      const { steps } = run === streamText ? { steps: await answer.steps } : await answer;
      assert.deepEqual(asked, ["east", "north", "up"]);
      assert.equal(steps.length, 3);
      const [call] = steps[0].toolCalls;
      assert.deepEqual(call.input, { type: "programmatic-tool-call", code: script + "\n" });
      const called = steps[0].toolCalls[1].providerMetadata.anthropic.caller;
      assert.deepEqual(called, { type: "code_execution_20260120", toolId: call.toolCallId });
      const [result] = steps[2].toolResults;
      assert.deepEqual([result.toolCallId, result.output.stdout], [call.toolCallId, "['4', '5']\n2\n"]);
      assert.equal(new Set(steps.map((step) => step.providerMetadata.anthropic.container.id)).size, 1);
    }
  });

  test(`AI SDK ${generation}: a file that code made is named in the result and downloaded by its id`, async () => {
    const { toolResults } = await generateText(ask(bash('printf "a,b\\n" > "$OUTPUT_DIR/out.csv"')));
    const [{ type, file_id }] = toolResults[0].output.content;
    assert.equal(type, "bash_code_execution_output");
    const headers = { "x-api-key": process.env.CODEEXEC_KEY, "anthropic-version": "2023-06-01" };
    assert.equal(await (await fetch(`${baseURL}/files/${file_id}/content`, { headers })).text(), "a,b\n");
  });

  test(`AI SDK ${generation}: a wrong key and an unknown container fail with their status and are not tried again`, async () => {
    let sent = 0;
    const counting = (...request) => (sent++, fetch(...request));
    const wrong = createAnthropic({ baseURL, apiKey: "wrong", fetch: counting });
    const right = createAnthropic({ baseURL, apiKey: process.env.CODEEXEC_KEY, fetch: counting });
    const failures = [
      [ask(bash("echo"), { model: wrong("demo"), maxRetries: 2 }), 401, "authentication_error"],
      [ask(bash("echo"), { model: right("demo"), maxRetries: 2, ...within("container_doesnotexist") }), 404, "not_found_error"],
    ];
    for (const [asked, status, kind] of failures) {
      sent = 0;
      await assert.rejects(generateText(asked), (error) => {
        assert.ok(APICallError.isInstance(error), String(error));
        assert.deepEqual([error.statusCode, error.isRetryable, error.data.error.type], [status, false, kind]);
        return true;
      });
      assert.equal(sent, 1);
      const parts = [];
      for await (const part of streamText({ ...asked, onError: () => {} }).fullStream) parts.push(part);
      assert.equal(parts.find((part) => part.type === "error").error.statusCode, status);
      assert.equal(sent, 2);
    }
  });

  test(`AI SDK ${generation}: an error of the model in the midst of a stream is a part of the stream`, async () => {
    const turn = [{ text: "I begin." }, { error: { status: 529, after: 1 } }].map((line) => JSON.stringify(line)).join("\n");
    const parts = [];
    for await (const part of streamText({ ...ask(bash("echo 1") + fence("turn", turn)), onError: () => {} }).fullStream) parts.push(part);
    assert.ok(parts.some((part) => part.type === "tool-result"));
    assert.match(JSON.stringify(parts.find((part) => part.type === "error").error), /overloaded_error/);
  });

  if (generation >= 7) {
    test(`AI SDK ${generation}: a file is uploaded for code to read, what it made is downloaded, and both are deleted`, async () => {
      const files = provider.files();
      const data = new TextEncoder().encode("a,b\n1,2\n");
      const uploaded = await uploadFile({ api: files, data, filename: "in.csv", mediaType: "text/csv" });
      assert.deepEqual([uploaded.filename, uploaded.mediaType], ["in.csv", "text/csv"]);
      const content = [
        { type: "text", text: bash('tac "$INPUT_DIR/in.csv" > "$OUTPUT_DIR/out.csv"') },
        {
          type: "file",
          mediaType: "text/csv",
          data: { type: "reference", reference: uploaded.providerReference },
          providerOptions: { anthropic: { containerUpload: true } },
        },
      ];
      const { toolResults } = await generateText(ask(undefined, { messages: [{ role: "user", content }] }));
      const made = { anthropic: toolResults[0].output.content[0].file_id };
      assert.equal((await files.getFileMetadata({ file: made })).filename, "out.csv");
      const { content: downloaded } = await files.downloadFile({ file: made });
      assert.equal(await new Response(downloaded).text(), "1,2\na,b\n");
      for (const file of [made, uploaded.providerReference]) {
        assert.equal((await files.deleteFile({ file })).deleted, true);
        await assert.rejects(files.getFileMetadata({ file }), (error) => error.statusCode === 404);
      }
    });
  }
}
