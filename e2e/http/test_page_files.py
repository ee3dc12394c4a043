"""The file examples of the code execution pages, in their order: only addresses, keys and names differ, and the code is fenced."""

import base64
import json
import subprocess

import pytest
import requests
from conftest import CE25, bash, fresh_id

UPLOADED = "L21udC91c2VyLWRhdGEvdXBsb2Fkcy9zYWxlcy5jc3Y"


@pytest.fixture
def shell(server, tmp_path):
    """Runs shell text in a folder of its own, where data.csv, sales.csv, q3.xlsx and settings.json are; gives what it prints."""
    for name in ("data.csv", "sales.csv", "q3.xlsx"):
        (tmp_path / name).write_text("month,revenue\n1,10\n2,32\n")
    (tmp_path / "settings.json").write_text('{"debug": true}')
    names = {"BASE_URL": server.url, "API_TOKEN": server.keys[0], "CONTAINER": fresh_id()}

    def run(text, **more):
        ended = subprocess.run(["bash", "-euo", "pipefail", "-c", text], capture_output=True, text=True, timeout=120, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"} | names | more)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    run.folder, run.container = tmp_path, names["CONTAINER"]
    return run


def test_an_upload_is_analysed_by_curl(shell):
    sent = json.loads(shell('curl --fail-with-body -sS "$BASE_URL/v1/files" -H "x-api-key: $API_TOKEN" -H "anthropic-version: 2023-06-01" -F "file=@data.csv"'))
    assert sent["filename"] == "data.csv" and sent["downloadable"] is False
    content = [{"type": "text", "text": "Analyze this CSV data\n" + bash("tail -n 1 $INPUT_DIR/data.csv")}, {"type": "container_upload", "file_id": sent["id"]}]
    body = {"model": "demo", "max_tokens": 4096, "messages": [{"role": "user", "content": content}], "tools": [CE25]}
    answer = json.loads(shell('curl --fail-with-body -sS "$BASE_URL/v1/messages" -H "x-api-key: $API_TOKEN" -H "anthropic-version: 2023-06-01" -H "content-type: application/json" -d "$BODY"', BODY=json.dumps(body)))
    assert answer["content"][1]["content"]["stdout"] == "2,32\n" and answer["stop_reason"] == "end_turn"


def test_an_upload_is_analysed_and_what_it_made_is_downloaded_by_the_sdk(server, shell):
    client = server.sdk()
    file_object = client.files.upload(file=shell.folder / "data.csv")
    text = "Create a matplotlib visualization and save it as output.png\n" + bash('cat "$INPUT_DIR/data.csv" > "$OUTPUT_DIR/output.png"')
    content = [{"type": "text", "text": text}, {"type": "container_upload", "file_id": file_object.id}]
    response = client.messages.create(model="demo", max_tokens=4096, messages=[{"role": "user", "content": content}], tools=[CE25])
    assert json.loads(response.to_json())["type"] == "message"
    file_ids = []
    for item in response.content:
        if item.type == "bash_code_execution_tool_result":
            content_item = item.content
            if content_item.type == "bash_code_execution_result":
                for output_block in content_item.content:
                    file_ids.append(output_block.file_id)
    (file_id,) = file_ids
    file_metadata = client.files.retrieve_metadata(file_id)
    client.files.download(file_id).write_to_file(shell.folder / file_metadata.filename)
    assert (shell.folder / "output.png").read_bytes() == (shell.folder / "data.csv").read_bytes()


def curl(method, path, *rest):
    return f'curl --fail-with-body -sS -X {method} "$BASE_URL/api/{path}" -H "Authorization: Bearer $API_TOKEN" ' + " ".join(rest)


def test_the_calls_of_a_containers_files_by_curl(shell):
    call = lambda method, path, *rest: json.loads(shell(curl(method, path, *rest)))
    made = call("POST", "gpt/v1/files?scope_id=$CONTAINER", '-F "file=@sales.csv"')
    assert made == made | {"id": UPLOADED, "filename": "sales.csv", "mime_type": "text/csv", "type": "file", "downloadable": False, "namespace": "session"}
    assert made["scope"] == {"id": shell.container, "type": "session"} and set(made) >= {"created_at", "size_bytes", "etag"}
    folder = call("POST", "gpt/v1/files?scope_id=$CONTAINER&path=data/2026/q3.xlsx", '-F "file=@q3.xlsx"')
    assert base64.urlsafe_b64decode(folder["id"] + "==") == b"/mnt/user-data/uploads/data/2026/q3.xlsx"
    put = call("PUT", "gpt/v1/files/config/settings.json?scope_id=$CONTAINER", '-H "Content-Type: application/json" --data-binary @settings.json')
    assert base64.urlsafe_b64decode(put["id"] + "==") == b"/mnt/user-data/uploads/config/settings.json"

    script = bash("cat /mnt/user-data/uploads/sales.csv > /mnt/user-data/outputs/revenue.png")
    body = {"model": "default", "max_tokens": 4096, "container": shell.container, "messages": [{"role": "user", "content": script}]}
    body |= {"tools": [{"name": "code_execution", "type": "code_execution_v1"}]}
    answer = json.loads(shell(curl("POST", "gpt/v1/messages", '-H "Content-Type: application/json" -d "$BODY"'), BODY=json.dumps(body)))
    assert answer["content"][1]["content"]["return_code"] == 0

    listed = call("GET", "gpt/v1/files?scope_id=$CONTAINER")
    assert set(listed) == {"data", "first_id", "last_id", "has_more"} and listed["has_more"] is False
    assert {item["filename"]: item["downloadable"] for item in listed["data"]} == {"sales.csv": False, "q3.xlsx": False, "settings.json": False, "revenue.png": True}
    file_id = shell("printf '/mnt/user-data/outputs/revenue.png' | base64 | tr '+/' '-_' | tr -d '='").strip()
    assert file_id == base64.urlsafe_b64encode(b"/mnt/user-data/outputs/revenue.png").decode().rstrip("=") == listed["last_id"]
    shell(curl("GET", f"gpt/v1/files/{file_id}/content?scope_id=$CONTAINER", "-o revenue.png"))
    assert (shell.folder / "revenue.png").read_bytes() == (shell.folder / "sales.csv").read_bytes()
    assert call("GET", f"gpt/v1/files/{file_id}?scope_id=$CONTAINER")["downloadable"] is True
    heads = shell(curl("GET", f"gpt/v1/files/{file_id}?scope_id=$CONTAINER", "--head -X HEAD")).lower()
    assert "x-file-filename: revenue.png" in heads

    assert call("DELETE", f"gpt/v1/files/{UPLOADED}?scope_id=$CONTAINER") == {"id": UPLOADED, "type": "file_deleted"}
    assert call("DELETE", "gpt/v1/files?scope_id=$CONTAINER&prefix=data/2026/") == {"prefix": "data/2026/", "deleted_count": 1, "type": "prefix_deleted"}


def test_the_complete_example(server, shell):
    base, headers, container = f"{server.url}/api/gpt/v1", {"Authorization": f"Bearer {server.keys[0]}"}, shell.container
    with open(shell.folder / "sales.csv", "rb") as f:
        requests.post(f"{base}/files", params={"scope_id": container}, headers=headers, files={"file": f}).raise_for_status()
    response = requests.post(f"{base}/messages", headers=headers, json={
        "model": "default",
        "max_tokens": 4096,
        "container": container,
        "messages": [{"role": "user", "content": bash("cp /mnt/user-data/uploads/sales.csv /mnt/user-data/outputs/revenue.png")}],
        "tools": [{"name": "code_execution", "type": "code_execution_v1"}],
    }).json()
    assert response["content"][-1]["text"]
    files = requests.get(f"{base}/files", params={"scope_id": container}, headers=headers).json()
    saved = {}
    for item in files["data"]:
        if item["downloadable"]:
            content = requests.get(f"{base}/files/{item['id']}/content", params={"scope_id": container}, headers=headers)
            saved[item["filename"]] = content.content
    assert saved == {"revenue.png": (shell.folder / "sales.csv").read_bytes()}
    for item in files["data"]:
        assert requests.delete(f"{base}/files/{item['id']}", params={"scope_id": container}, headers=headers).status_code == 200
    assert requests.get(f"{base}/files", params={"scope_id": container}, headers=headers).json()["data"] == []


def test_the_calls_of_a_threads_files_by_curl(shell):
    sent = json.loads(shell(curl("POST", "v1/app/thread/$CONTAINER/upload-file", '-F "file=@sales.csv"')))
    assert sent["id"] == UPLOADED
    shell(curl("PUT", "v1/app/thread/$CONTAINER/put-file/outputs/revenue.png", "--data-binary @sales.csv"))
    shell(curl("GET", "v1/app/thread/$CONTAINER/download-file?path=/mnt/user-data/outputs/revenue.png", "-o revenue.png"))
    assert (shell.folder / "revenue.png").read_bytes() == (shell.folder / "sales.csv").read_bytes()
