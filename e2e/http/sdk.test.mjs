// The official TypeScript SDK, unmodified, against the server of $CODEEXEC_URL.
import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import Anthropic, { toFile } from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.CODEEXEC_URL, apiKey: process.env.CODEEXEC_KEY, maxRetries: 0 });
const ask = (content, fields = {}) => ({
  model: "demo",
  max_tokens: 1024,
  messages: [{ role: "user", content }],
  tools: [{ type: "code_execution_20250825", name: "code_execution" }],
  ...fields,
});
const fence = (command) => "```bash\n" + command + "\n```";
const result = (message) => message.content.find((block) => block.type === "bash_code_execution_tool_result").content;

test("create runs code and the container is used again", async () => {
  const first = await client.messages.create(ask(fence("echo 12 > /tmp/n; echo done")));
  assert.equal(result(first).stdout, "done\n");
  const second = await client.messages.create(ask(fence("cat /tmp/n"), { container: first.container.id }));
  assert.equal(result(second).stdout, "12\n");
  assert.equal(second.container.id, first.container.id);
});

test("stream ends with the same message, its container included", async () => {
  const final = await client.messages.stream(ask(fence("echo 42"))).finalMessage();
  assert.equal(result(final).stdout, "42\n");
  assert.deepEqual(final.content[0].input, { command: "echo 42" });
  assert.match(final.container.id, /^container_/);
});

// T22.
test("a stream of edits has each result in its own shape", async () => {
  const inputs = [
    { command: "create", path: "a.txt", file_text: "one\n" },
    { command: "str_replace", path: "a.txt", old_str: "one", new_str: "two" },
    { command: "view", path: "a.txt" },
    { command: "view", path: "missing" },
  ];
  const calls = inputs.map((input) => JSON.stringify({ name: "text_editor_code_execution", input }));
  const final = await client.messages.stream(ask("```tool_use\n" + calls.join("\n") + "\n```")).finalMessage();
  const uses = final.content.filter((block) => block.type === "server_tool_use");
  assert.deepEqual(uses.map((use) => use.input), inputs);
  const results = final.content.filter((block) => block.type === "text_editor_code_execution_tool_result");
  assert.deepEqual(results.map((block) => block.tool_use_id), uses.map((use) => use.id));
  const [created, replaced, viewed, missing] = results.map((block) => block.content);
  assert.equal(created.is_file_update, false);
  assert.deepEqual(replaced.lines, ["-one", "+two"]);
  assert.deepEqual([viewed.content, viewed.num_lines, viewed.total_lines], ["two", 1, 1]);
  assert.equal(missing.error_code, "file_not_found");
});

test("the tool runner answers what Python code calls, streamed and not", async () => {
  for (const stream of [false, true]) {
    const asked = [];
    const stock = {
      name: "get_stock",
      input_schema: { type: "object", properties: { place: { type: "string" } } },
      allowed_callers: ["code_execution_20260120"],
      parse: (input) => input,
      run: ({ place }) => (asked.push(place), String(place.length)),
    };
    const code = "import asyncio\nrows = await asyncio.gather(get_stock(place='east'), get_stock(place='north'))\nrows";
    const tools = [stock, { type: "code_execution_20260521", name: "code_execution" }];
    const runner = client.beta.messages.toolRunner(ask("```python\n" + code + "\n```", { tools, stream }));
    const final = await runner.runUntilDone();
    assert.deepEqual(asked, ["east", "north"]);
    assert.equal(final.content[0].type, "code_execution_tool_result");
    assert.equal(final.content[0].content.stdout, "['4', '5']\n");
  }
});

test("a file goes in and another comes out", async () => {
  const file = await client.files.upload({ file: await toFile(Buffer.from("a,b\n1,2\n"), "in.csv", { type: "text/csv" }) });
  const content = [
    { type: "text", text: fence('cp "$INPUT_DIR/in.csv" "$OUTPUT_DIR/out.csv"') },
    { type: "container_upload", file_id: file.id },
  ];
  const message = await client.messages.create(ask(content));
  const [output] = result(message).content;
  assert.equal((await client.files.retrieveMetadata(output.file_id)).filename, "out.csv");
  assert.equal(await (await client.files.download(output.file_id)).text(), "a,b\n1,2\n");
});

test("a file of the disk is uploaded as a stream, and what code made of it is written to the disk", async () => {
  const folder = await mkdtemp(join(tmpdir(), "files-"));
  await writeFile(join(folder, "data.csv"), "a,b\n1,2\n");
  const file = await client.files.upload({ file: createReadStream(join(folder, "data.csv")) });
  const content = [
    { type: "text", text: fence('tac "$INPUT_DIR/data.csv" > "$OUTPUT_DIR/output.csv"') },
    { type: "container_upload", file_id: file.id },
  ];
  const response = await client.messages.create(ask(content));
  for (const outputBlock of result(response).content) {
    const [fileMetadata, fileResponse] = await Promise.all([
      client.files.retrieveMetadata(outputBlock.file_id),
      client.files.download(outputBlock.file_id),
    ]);
    await writeFile(join(folder, fileMetadata.filename), Buffer.from(await fileResponse.arrayBuffer()));
  }
  assert.equal(await readFile(join(folder, "output.csv"), "utf8"), "1,2\na,b\n");
  await rm(folder, { recursive: true });
});

test("an unknown container is a NotFoundError", async () => {
  await assert.rejects(client.messages.create(ask("hi", { container: "container_doesnotexist" })), Anthropic.NotFoundError);
});

test("models are listed, found by an alias, and count tokens", async () => {
  const ids = [];
  for await (const model of client.models.list({ limit: 1 })) ids.push(model.id);
  assert.deepEqual(ids, ["demo"]);
  const model = await client.models.retrieve("default");
  assert.equal(model.id, "demo");
  assert.equal(model.capabilities.server_tools.code_execution.supported, true);
  const { max_tokens, ...prompt } = ask("hi");
  assert.ok((await client.messages.countTokens(prompt)).input_tokens > 100, "the tools count too");
  await assert.rejects(client.models.retrieve("nope"), Anthropic.NotFoundError);
});

test("files are listed page by page, by their ids, expire and are deleted", async () => {
  const made = [];
  for (const name of ["a.txt", "b.txt", "c.txt"]) {
    made.push(await client.files.upload({ file: await toFile(Buffer.from(name), name, { type: "text/plain" }), expires_in_seconds: 3600 }));
  }
  const ids = made.map((file) => file.id);
  assert.equal(Date.parse(made[0].expires_at) - Date.parse(made[0].created_at), 3_600_000);
  assert.deepEqual(await client.files.retrieveMetadata(ids[0]), made[0]);
  const walked = [];
  for await (const file of client.files.list({ limit: 1 })) {
    walked.push(file.id);
    if (walked.length === 3) break;
  }
  assert.deepEqual(walked, [...ids].reverse());
  const some = await client.files.list({ ids: [ids[0], ids[2], "file_none"] });
  assert.deepEqual(some.data.map((file) => file.id), [ids[2], ids[0]]);
  await assert.rejects(client.files.download(ids[0]), (error) => error.status === 400 && /is not downloadable/.test(error.message));
  for (const id of ids) {
    assert.equal((await client.files.delete(id)).type, "file_deleted");
    await assert.rejects(client.files.retrieveMetadata(id), Anthropic.NotFoundError);
  }
});
