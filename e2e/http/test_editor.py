"""The editor sub-tool through the Messages API, on both surfaces and in both dialects."""

import base64
import hashlib
import json

import pytest
from anthropic.types import Message

from conftest import CE25, CE_V1, bash, events, fresh_id, request

EDITOR = "text_editor_code_execution"
SURFACES = [("anthropic", CE25), ("anthropic", CE_V1), ("zylon", CE25), ("zylon", CE_V1)]
ZYLON = {"surface": "zylon", "tools": [CE_V1]}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def edit(*inputs):
    """One turn of the script that makes these edits."""
    lines = "\n".join(json.dumps({"name": EDITOR, "input": entry}) for entry in inputs)
    return f"`````tool_use\n{lines}\n`````\n"


def view(path, *lines):
    return {"command": "view", "path": path} | ({"view_range": list(lines)} if lines else {})


def create(path, text):
    return {"command": "create", "path": path, "file_text": text}


def replace(path, old, *new):
    return {"command": "str_replace", "path": path, "old_str": old} | ({"new_str": new[0]} if new else {})


def insert(path, line, text):
    return {"command": "insert", "path": path, "insert_line": line, "insert_text": text}


def results(answer):
    return [block["content"] for block in answer["content"] if "tool_use_id" in block]


def edited(server, *inputs, **fields):
    """The contents of the result blocks of these edits, made in one turn."""
    answer = server.ask(edit(*inputs), **fields)
    found = [block["content"] for block in answer["content"] if block["type"] == f"{EDITOR}_tool_result"]
    assert len(found) == len(inputs), answer
    return found


def shown(text, start, count, total):
    return {
        "type": f"{EDITOR}_view_result", "file_type": "text", "content": text,
        "num_lines": count, "start_line": start, "total_lines": total,
    }


def created(is_update=False):
    return {"type": f"{EDITOR}_create_result", "is_file_update": is_update}


def changed(line, old, new, *lines):
    return {
        "type": f"{EDITOR}_str_replace_result", "old_start": line, "old_lines": old,
        "new_start": line, "new_lines": new, "lines": list(lines),
    }


def reason(content):
    """The reason that an error block gives in words, in either dialect."""
    assert content["type"] == f"{EDITOR}_tool_result_error", content
    return content["detail"]["explanation"] if "detail" in content else content["error_message"]


@pytest.mark.parametrize(("surface", "tool"), SURFACES)
def test_results_have_the_shapes_of_the_published_examples(server, surface, tool):
    config = '{\n  "setting": "value",\n  "debug": true\n}'
    answer = server.ask(
        edit(
            create("config.json", config),
            view("config.json"),
            replace("config.json", '"debug": true', '"debug": false'),
            view("/home/agent/workspace/config.json", 3, -1),
            create("config.json", ""),
        ),
        surface=surface, tools=[tool], container=fresh_id() if surface == "zylon" else None,
    )
    uses = [block for block in answer["content"] if block["type"] == "server_tool_use"]
    blocks = [block for block in answer["content"] if "tool_use_id" in block]
    assert [use["name"] for use in uses] == [EDITOR] * 5
    assert [block["tool_use_id"] for block in blocks] == [use["id"] for use in uses]
    assert results(answer) == [
        created(),
        shown(config, 1, 4, 4),
        changed(3, 1, 1, '-  "debug": true', '+  "debug": false'),
        shown('  "debug": false\n}', 3, 2, 4),
        created(is_update=True),
    ]
    assert answer["stop_reason"] == "end_turn" and answer["usage"]["server_tool_use"]["code_execution_requests"] == 5


def test_commands_and_edits_see_the_same_files_in_order(server):
    answer = server.ask(
        bash("printf 'echo one\\n' > run.sh; chmod 755 run.sh"),
        edit(replace("run.sh", "one", "two"), create("new/folder/a.txt", "é\n")),
        bash("./run.sh; stat -c %a run.sh new/folder/a.txt; cat new/folder/a.txt; ls -A"),
    )
    assert results(answer)[3]["stdout"] == "two\n755\n644\né\nnew\nrun.sh\n"


def test_the_stream_and_the_plain_answer_are_the_same_message(server):
    script = edit(create("a.txt", "x\n"), view("a.txt"), view("missing"))
    plain = server.ask(script)
    seen = list(events(server.post("/v1/messages", request(script, stream=True))))
    blocks = [data["content_block"] for name, data in seen if name == "content_block_start"]
    assert [block["type"] for block in blocks] == [block["type"] for block in plain["content"]]
    streamed = [block["content"] for block in blocks if "tool_use_id" in block]
    assert streamed == results(plain)


def test_errors_have_codes_in_one_dialect_and_reasons_in_the_other(server):
    wrong = [
        (view("missing.txt"), "file_not_found", "File not found: /home/agent/workspace/missing.txt"),
        (replace("missing.txt", "a", "b"), "file_not_found", "File not found: /home/agent/workspace/missing.txt"),
        (view("/etc/passwd"), "invalid_tool_input", "Path '/etc/passwd' does not match any session mount"),
        (create("../../../etc/x", ""), "invalid_tool_input", "Path '/home/agent/workspace/../../../etc/x' does not match"),
        (replace("a.txt", "y", "z"), "invalid_tool_input", "old_str was not found in the file."),
    ]
    dated = edited(server, create("a.txt", "x\n"), *[entry for entry, _, _ in wrong])[1:]
    v1 = edited(server, create("a.txt", "x\n"), *[entry for entry, _, _ in wrong], container=fresh_id(), **ZYLON)[1:]
    for (entry, code, words), one, other in zip(wrong, dated, v1):
        assert one["error_code"] == code and reason(one).startswith(words), (entry, one)
        assert set(one) == {"type", "error_code", "error_message"}
        assert other["error_code"] == other["detail"]["code"] == "unavailable" and reason(other) == reason(one)
        assert set(other) == {"type", "error_code", "detail"}


def test_crlf_is_matched_and_written_back(server):
    """T10."""
    made, done = edited(server, create("crlf.txt", "a\r\nb\r\nc\r\n"), replace("crlf.txt", "a\nb", "A\nB"), **ZYLON)
    assert (made["type"], done["old_lines"], done["new_lines"]) == (f"{EDITOR}_create_result", 2, 2)
    answer, _ = server.bash("od -An -c crlf.txt | tr -d ' \\n'", **ZYLON)
    assert answer["stdout"] == "A\\r\\nB\\r\\nc\\r\\n"


def test_only_one_place_is_replaced_and_literally(server):
    """T11."""
    done = edited(
        server,
        create("a.txt", "x\ny x\nz\nx\n"),
        replace("a.txt", "x", "q"),
        replace("a.txt", "", "q"),
        create("b.txt", "aaa"),
        replace("b.txt", "aa", "b"),
        create("c.txt", "abc"),
        replace("c.txt", "b"),
        replace("c.txt", "c", "$1\\0"),
        view("c.txt"),
        view("a.txt"),
    )
    assert [block["error_code"] for block in (done[1], done[2], done[4])] == ["invalid_tool_input"] * 3
    assert reason(done[1]).startswith("old_str appears more than once in the file. It appears 3 times, at lines 1, 2, 4")
    assert "2 times" in reason(done[4])
    assert (done[8]["content"], done[9]["content"]) == ("a$1\\0", "x\ny x\nz\nx")


def test_view_ranges_are_clamped_at_the_end_and_refused_before_the_start(server):
    """T12."""
    ranges = [[1, -1], [2, 2], [3, 700], [0, 1], [5, 6], [3, 2]]
    made, empty, *views, nothing = edited(
        server, create("a.txt", "a\nb\nc\n"), create("empty", ""), *[view("a.txt", *pair) for pair in ranges], view("empty")
    )
    assert views[:3] == [shown("a\nb\nc", 1, 3, 3), shown("b", 2, 1, 3), shown("c", 3, 1, 3)]
    assert [block["error_code"] for block in views[3:]] == ["invalid_tool_input"] * 3
    assert nothing == shown("", 1, 0, 0)


def test_lines_are_inserted_and_folders_listed_in_the_dialect_that_knows_it(server):
    container = fresh_id()
    done = edited(
        server,
        create("d/a.txt", "one\r\ntwo\r\n"),
        insert("d/a.txt", "1", "x\ny"),
        insert("d/a.txt", 9, "x"),
        view("d/a.txt"),
        view("/home/agent/workspace"),
        view("d"),
        container=container, **ZYLON,
    )
    assert done[1] == changed(1, 0, 2, "+x\r", "+y\r")
    assert reason(done[2]).startswith("insert_line 9 is out of range.")
    assert done[3]["content"] == "one\r\nx\r\ny\r\ntwo\r"
    assert (done[4], done[5]) == (shown("[dir] d", 1, 1, 1), shown("[file] a.txt", 1, 1, 1))
    _, folder = edited(server, create("d/a.txt", ""), view("d"))
    assert folder["error_code"] == "invalid_tool_input" and "/home/agent/workspace/d is a directory" in reason(folder)


def test_a_large_text_is_written_byte_by_byte(server):
    """T06."""
    text = "0123456789 é\n" * (5_000_000 // 14)
    script = edit(create("large.txt", text)) + bash("sha256sum < large.txt | cut -c 1-64")
    made, summed = results(server.ask(script, max_tokens=10_000_000))
    assert made == created()
    assert summed["stdout"].strip() == hashlib.sha256(text.encode()).hexdigest()


def test_a_text_that_no_sandbox_takes_is_refused_with_the_limit(server):
    """T06."""
    (refused,) = edited(server, create("larger.txt", "x" * 9_000_000), max_tokens=10_000_000)
    assert refused["error_code"] == "invalid_tool_input" and "8388608 bytes" in reason(refused)


def test_an_empty_file_is_made(server):
    """T07."""
    answer = server.ask(edit(create("empty.txt", "")), bash("stat -c %s empty.txt"))
    assert results(answer)[0] == created() and results(answer)[1]["stdout"] == "0\n"


def test_uploads_are_viewed_and_not_written(server):
    made = server.sdk().files.upload(file=("in.csv", b"a,b\n1,2\n", "text/csv"))
    script = edit(view("$INPUT_DIR/in.csv"), replace("${INPUT_DIR}/in.csv", "a", "x"), create("$INPUT_DIR/new", "x"))
    message = {"role": "user", "content": [
        {"type": "text", "text": script + bash('cat "$INPUT_DIR/in.csv"; ls "$INPUT_DIR"')},
        {"type": "container_upload", "file_id": made.id},
    ]}
    for tool in (CE25, CE_V1):
        answer = server.post("/v1/messages", request(messages=[message], tools=[tool])).json()
        seen, *refused, listed = results(answer)
        assert seen == shown("a,b\n1,2", 1, 2, 2) and listed["stdout"] == "a,b\n1,2\nin.csv\n"
        for content, name in zip(refused, ("in.csv", "new")):
            path = f"/mnt/user-data/uploads/{name}"
            assert reason(content).startswith(f"Path '{path}' is in a read-only mount"), content
            assert content["error_code"] == ("invalid_tool_input" if tool is CE25 else "unavailable")
    (skill,) = edited(server, create("/mnt/skills/x/SKILL.md", ""))
    assert reason(skill).startswith("Path '/mnt/skills/x/SKILL.md' is in a read-only mount")


def test_links_lead_nowhere_outside_and_odd_files_never_hang(server):
    container = fresh_id()
    server.bash("ln -s /etc out; ln -s /etc/passwd file; ln -s /mnt/user-data/outputs in; mkfifo pipe", container=container, **ZYLON)
    done = edited(
        server,
        view("out/passwd"), view("file"), create("file", "x"), create("in/a.txt", "x"), view("pipe"), view("/dev/zero"),
        view("/proc/1/environ"),
        container=container, **ZYLON,
    )
    for place in (0, 1, 2, 5, 6):
        assert "does not match any session mount" in reason(done[place])
    assert done[3] == created() and "is a pipe" in reason(done[4])
    result, _ = server.bash("cat /mnt/user-data/outputs/a.txt", container=container, **ZYLON)
    assert result["stdout"] == "x"


def test_an_image_is_shown_as_an_image(server):
    container = fresh_id()
    server.bash(f"echo {base64.b64encode(PNG).decode()} | base64 -d > a.png", container=container, **ZYLON)
    (image,) = edited(server, view("a.png"), container=container, **ZYLON)
    assert image == {
        "type": f"{EDITOR}_view_result", "file_type": "image", "content": base64.b64encode(PNG).decode(),
        "num_lines": None, "start_line": None, "total_lines": None,
    }


def test_an_answer_with_edits_can_be_sent_back_whole(server):
    script = edit(create("a.txt", "one\n"), replace("a.txt", "one", "two"), view("a.txt"), view("missing"))
    first = server.ask(script)
    messages = [
        {"role": "user", "content": script},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "And now?\n" + edit(view("a.txt"))},
    ]
    again = server.post("/v1/messages", request(messages=messages, container=first["container"]["id"]))
    assert again.status_code == 200, again.text
    assert results(again.json()) == [shown("two", 1, 1, 1)]


def test_the_sdk_reads_every_block_as_its_type(server):
    script = edit(create("a.txt", "one\n"), replace("a.txt", "one", "two"), view("a.txt"), view("missing"))
    names = ["CreateResultBlock", "StrReplaceResultBlock", "ViewResultBlock", "ToolResultErrorObject"]
    for tool in (CE25, CE_V1):
        fields = {"model": "demo", "max_tokens": 4096, "tools": [tool], "messages": [{"role": "user", "content": script}]}
        client = server.sdk()
        with client.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
        for message in (client.messages.create(**fields), streamed):
            Message.model_validate(message.to_dict(mode="json"), strict=False)
            blocks = [block for block in message.content if block.type == f"{EDITOR}_tool_result"]
            assert [type(block).__name__ for block in blocks] == ["TextEditorCodeExecutionToolResultBlock"] * 4
            kinds = [type(block.content).__name__.removeprefix("TextEditorCodeExecution") for block in blocks]
            assert kinds == names
            assert blocks[1].content.lines == ["-one", "+two"] and blocks[2].content.content == "two"
            assert message.content[0].input["command"] == "create"
