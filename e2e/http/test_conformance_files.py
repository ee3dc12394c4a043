"""Files, by the numbers of the conformance list, with each official SDK: Python of both generations and TypeScript."""

import datetime

import pytest
from conftest import Sdk, SdkError, bash, request

CSV = b"x,y\n1,2\n"


class Files:
    """The file calls of an SDK: the older generation has them among its betas."""

    def __init__(self, sdk):
        self.sdk, self.old, self.prefix = sdk, sdk.old, "beta.files." if sdk.old else "files."

    def call(self, name, *arguments, key=0, **named):
        return self.sdk.call(self.prefix + name, *arguments, key=key, **named)

    def upload(self, name="a.csv", content=CSV, kind="text/csv", key=0, **named):
        return self.call("upload", file=Sdk.file(name, content, kind), key=key, **named)

    def ask(self, *parts, content=None, **fields):
        body = request(*parts, **fields)
        if content:
            body["messages"][0]["content"] = content
        return self.sdk.call("beta.messages.create" if self.old else "messages.create", **body)

    def bash(self, command, **fields):
        answer = self.ask(bash(command), **fields)
        (result,) = [block["content"] for block in answer["content"] if block["type"] == "bash_code_execution_tool_result"]
        return result, answer


@pytest.fixture
def files(sdk):
    return Files(sdk)


def refused(call, *arguments, **named):
    with pytest.raises(SdkError) as raised:
        call(*arguments, **named)
    return raised.value


def seconds(meta):
    """Seconds between a file's making and its expiry."""
    made, ends = (datetime.datetime.fromisoformat(meta[name].replace("Z", "+00:00")) for name in ("created_at", "expires_at"))
    return (ends - made).total_seconds()


def walked(files, made):
    """Those of the files `made` that a walk through all pages of one file each meets, in its order. Others may be there too."""
    return [meta["id"] for meta in files.call("list", limit=1, key=2) if meta["id"] in made]


def test_41_an_upload_is_described(files):
    made = files.upload()
    assert made["id"].startswith("file_") and made["type"] == "file" and made["filename"] == "a.csv"
    assert (made["size_bytes"], made["mime_type"], made["downloadable"]) == (8, "text/csv", False)
    assert made["expires_at"] is None


def test_42_a_name_keeps_its_last_part_and_an_impossible_one_is_refused(files, server):
    assert files.upload("dir/../b.txt", b"..", "text/plain")["filename"] == "b.txt"
    error = refused(files.upload, "a<b.txt", b"x", "text/plain")
    assert (error.name, error.status) == ("BadRequestError", 400) and "filename" in error.message
    # The SDKs leave an empty name out, or send a name of their own.
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename=""\r\nContent-Type: text/plain\r\n\r\nx\r\n--b--\r\n'
    answer = server.post("/v1/files", data=part, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.json()["filename"].startswith("unnamed"), answer.text


def test_43_an_expiry_counts_from_the_making(files):
    if files.old:
        pytest.skip("this generation has no such parameter")
    assert seconds(files.upload(expires_in_seconds=3600)) == 3600
    error = refused(files.upload, expires_in_seconds=10)
    assert (error.name, error.status) == ("BadRequestError", 400) and "expires_in_seconds" in error.message


def test_44_metadata_is_what_the_upload_said(files):
    made = files.upload()
    assert files.call("retrieve_metadata", made["id"]) == made


def test_45_the_list_is_walked_newest_first_and_by_ids(files):
    if files.old:
        pytest.skip("its own way is number 46")
    made = [files.upload(f"{number}.csv", key=2)["id"] for number in range(3)]
    assert walked(files, made) == made[::-1]
    found = files.call("list", ids=[made[0], made[1], "file_none"], key=2)
    assert {meta["id"] for meta in found} == set(made[:2])


def test_46_the_older_generation_walks_by_has_more_and_last_id(sdks):
    old = Files(sdks("python-0.97"))
    made = [old.upload(f"{number}.csv", key=2)["id"] for number in range(3)]
    assert walked(old, made) == made[::-1]


def test_47_an_upload_cannot_be_downloaded(files):
    error = refused(files.call, "download", files.upload()["id"])
    assert (error.status, error.error_code) == (400, "file_not_downloadable")
    assert error.name == ("BadRequestError" if files.old else "FileNotDownloadableError")


def test_48_a_file_that_a_command_left_is_downloaded_byte_for_byte(files):
    write = "open(os.environ['OUTPUT_DIR'] + '/r.bin', 'wb').write(bytes(range(256)) * 300)"
    result, _ = files.bash(f'python3 -c "import os; {write}"')
    assert [block["type"] for block in result["content"]] == ["bash_code_execution_output"]
    output = result["content"][0]["file_id"]
    assert files.call("download", output) == bytes(range(256)) * 300
    meta = files.call("retrieve_metadata", output)
    assert meta["downloadable"] is True and meta["filename"] == "r.bin"


def test_49_only_the_output_folder_counts_and_each_command_begins_with_an_empty_one(files):
    result, first = files.bash('mkdir "$OUTPUT_DIR/sub"; echo x > "$OUTPUT_DIR/sub/no"; echo x > elsewhere; echo x > "$OUTPUT_DIR/yes"')
    assert [files.call("retrieve_metadata", block["file_id"])["filename"] for block in result["content"]] == ["yes"]
    result, _ = files.bash('ls -A "$OUTPUT_DIR"', container=first["container"]["id"])
    assert (result["stdout"], result["content"]) == ("", [])


def test_50_an_upload_block_puts_the_file_into_the_container(files):
    def content(identity):
        return [{"type": "text", "text": bash('cat "$INPUT_DIR/a.csv"')}, {"type": "container_upload", "file_id": identity}]

    made = files.upload()["id"]
    answer = files.ask(content=content(made))
    assert answer["content"][1]["content"]["stdout"] == CSV.decode()
    without = refused(files.ask, content=content(made), tools=[])
    assert (without.name, without.status) == ("BadRequestError", 400) and "container_upload" in without.message
    unknown = refused(files.ask, content=content("file_none"))
    assert (unknown.name, unknown.status) == ("NotFoundError", 404) and "File `file_none` not found." in unknown.message


def test_51_a_deleted_file_is_gone(files):
    made = files.upload()["id"]
    assert files.call("delete", made) == {"id": made, "type": "file_deleted"}
    for gone in ("retrieve_metadata", "download"):
        assert refused(files.call, gone, made).name == "NotFoundError"


def test_52_another_workspace_finds_nothing(files):
    made = files.upload()["id"]
    for call in ("retrieve_metadata", "download", "delete"):
        assert refused(files.call, call, made, key=2).name == "NotFoundError", call
    assert made not in [meta["id"] for meta in files.call("list", limit=1000, key=2)]
    assert files.call("retrieve_metadata", made)["id"] == made
