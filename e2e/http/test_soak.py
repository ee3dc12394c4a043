"""Many streams at once for a while, one in ten of them cut by its client: nothing of them stays behind, and memory does not grow."""

import asyncio
import collections
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

import pytest

from conftest import CE25, start_server, stop_server, wait_until

pytestmark = pytest.mark.local
CONTAINERS = 8


@pytest.fixture
def upstream():
    script = pathlib.Path(__file__).with_name("paced_upstream.py")
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().strip()
    process.kill()
    process.wait()


def family(pid):
    """The process and all that come from it, by name."""
    parents, names = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        names[int(path.parent.name)], parents[int(path.parent.name)] = name, int(rest.split()[1])
    found, fresh = {}, {pid}
    while fresh:
        found |= {one: names[one] for one in fresh if one in names}
        fresh = {one for one, parent in parents.items() if parent in fresh}
    return found


def resident(pids):
    """Bytes of memory that these processes have."""
    pages = 0
    for pid in pids:
        try:
            pages += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            pass
    return pages * os.sysconf("SC_PAGE_SIZE")


def told(pid):
    """The words that the process was started with; none of one that has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def belongings(server):
    """What must be the same before and after: processes by name, all their descriptors, and tasks. None while sandboxes serve files, which they
    stop a while after the last."""
    names, descriptors = collections.Counter(), 0
    for pid, name in family(server.process.pid).items():
        if b"files" in told(pid):
            return None
        try:
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue
        names[name] += 1
    return names, descriptors, server.metric("codeexec_api_tasks")


async def stream(server, container, chance):
    """One stream; returns how it ended: whole, cut by us, or what went wrong."""
    runs = chance.random() < 0.25
    cut_after = chance.randrange(1, 15) if chance.random() < 0.1 else None
    body = {"model": "default", "max_tokens": 100, "stream": True, "container": container, "tools": [CE25]}
    body = json.dumps(body | {"messages": [{"role": "user", "content": "run it" if runs else "talk"}]}).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {server.keys[0]}\r\nanthropic-version: 2023-06-01\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
    try:
        writer.write(head.encode() + body)
        said = b""
        while piece := await asyncio.wait_for(reader.read(65536), 120):
            said += piece
            if cut_after and said.count(b"event: ") >= cut_after:
                return "cut"
        fine = said.startswith(b"HTTP/1.1 200 ") and said.count(b"event: message_stop") == 1 and b"event: error" not in said
        return ("run" if b'"stdout":"42\\n"' in said else "talk") if fine else said.decode()
    finally:
        # Without a word, as a client that crashes.
        writer.transport.abort()


async def soak(server, containers, streams, seconds):
    """Keeps so many streams up; returns how many ended how, and the memory at the end of each half."""
    ended, over, memory = collections.Counter(), time.monotonic() + seconds, []

    async def client(number):
        chance = random.Random(number)
        while time.monotonic() < over:
            ended[await stream(server, chance.choice(containers), chance)] += 1

    async def watch():
        for half in (1, 2):
            start = over - seconds + half * seconds / 2
            await asyncio.sleep(start - seconds / 6 - time.monotonic())
            samples = []
            while time.monotonic() < start:
                lasting = [pid for pid in family(server.process.pid) if b"serve" in told(pid)]
                samples.append(resident([server.process.pid, *lasting]))
                await asyncio.sleep(seconds / 100)
            memory.append(statistics.median(samples))

    await asyncio.gather(watch(), *(client(number) for number in range(streams)))
    return ended, memory


@pytest.mark.parametrize(
    ("streams", "seconds", "growth"),
    # A short run has not seen all that is made once and kept.
    [pytest.param(50, 10, 1.3, id="short"), pytest.param(200, 120, 1.1, id="long", marks=pytest.mark.long)],
)
def test_many_streams_leave_nothing_behind(upstream, tmp_path, streams, seconds, growth):
    server = start_server(tmp_path, "--provider", "anthropic", "--provider-url", upstream, "--model", "paced")
    try:
        containers = [server.ask("run", model="paced")["container"]["id"] for _ in range(CONTAINERS)]
        before = wait_until(lambda: belongings(server), 120, "sandboxes at rest")
        ended, (first, second) = asyncio.run(soak(server, containers, streams, seconds))
        whole = ended["run"] + ended["talk"]
        assert set(ended) == {"run", "talk", "cut"} and whole >= streams, ended
        assert second <= growth * first, f"{first / 1e6:.1f} MB, then {second / 1e6:.1f} MB"
        patience = time.monotonic() + 120
        while (after := belongings(server)) != before and time.monotonic() < patience:
            time.sleep(0.2)
        assert after == before
        print(f"{dict(ended)}; {first / 1e6:.1f} MB, then {second / 1e6:.1f} MB; {before}")
    finally:
        stop_server(server)
