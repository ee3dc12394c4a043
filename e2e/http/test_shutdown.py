"""What is left when a server ends: nothing."""

import pathlib
import signal
import threading
import time

import pytest

from conftest import bash, fresh_id, request, start_server, stop_server, wait_until

pytestmark = pytest.mark.local


def processes_with(marker):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def start_command(server, marker):
    """Runs a command that leaves a process of its own session, and waits until both are there."""
    number = str(int(marker.removeprefix("test-"), 16) % 10**9 + 10**9)
    command = f"setsid sleep {number} & sleep {number}.5; echo never"
    body = request(bash(command), container=marker)
    threading.Thread(target=lambda: quietly(lambda: server.post("/api/gpt/v1/messages", body)), daemon=True).start()
    wait_until(lambda: len([pid for pid in processes_with(f"sleep\0{number}")]) >= 2, 30)
    return number


def quietly(call):
    try:
        call()
    except Exception:  # The server is killed under this request.
        pass


def test_killing_the_server_ends_every_process_of_its_sandboxes(tmp_path):
    server = start_server(tmp_path)
    container = fresh_id()
    number = start_command(server, container)
    server.process.kill()
    server.process.wait(timeout=10)
    wait_until(lambda: not processes_with(f"sleep\0{number}"), 2 * 3)
    again = start_server(tmp_path, keys=server.keys)
    try:
        result, _ = again.bash("echo back; ls", surface="zylon", container=container)
        assert result["stdout"].startswith("back\n")
    finally:
        stop_server(again)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stopped_server_leaves_no_process(tmp_path, name):
    server = start_server(tmp_path)
    number = start_command(server, fresh_id())
    server.process.send_signal(getattr(signal, name))
    assert server.process.wait(timeout=20) == 0, server.log.read_text()
    assert not processes_with(f"sleep\0{number}") and not processes_with(str(tmp_path))


def test_a_client_that_leaves_ends_its_command(tmp_path):
    server = start_server(tmp_path)
    try:
        number = f"{int(time.time())}77"
        body = request(bash(f"setsid sleep {number} & sleep {number}"), stream=True, container=fresh_id())
        answer = server.post("/api/gpt/v1/messages", body, stream=True)
        wait_until(lambda: len(processes_with(f"sleep\0{number}")) >= 2, 30)
        answer.close()
        wait_until(lambda: not processes_with(f"sleep\0{number}"), 3)
    finally:
        stop_server(server)
