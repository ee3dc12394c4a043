"""The server is killed at any moment of what it does with files: each is old or new, never torn, and never listed without its content."""

import contextlib
import hashlib
import json
import random
import threading

import anthropic
import pytest
import requests
from conftest import fresh_id, start_server, stop_server

pytestmark = pytest.mark.local
TROUBLE = (anthropic.APIError, requests.RequestException)


class World:
    """What the clients know: `kept` has certainly been stored, `gone` certainly deleted, `open` is being written or deleted."""

    def __init__(self, seed):
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.kept, self.gone, self.open, self.done = {}, set(), set(), {"upload": 0, "delete": 0, "overwrite": 0, "capture": 0}
        # The container's one file: the last content that was confirmed, and what may have taken its place.
        self.content, self.maybe, self.container = None, [], fresh_id()

    def upload(self, server):
        content = self.random.randbytes(self.random.choice([0, 100, 70_000, 3_000_000]))
        made = server.sdk().files.upload(file=("a.bin", content))
        with self.lock:
            self.kept[made.id] = hashlib.sha256(content).hexdigest()

    def delete(self, server):
        with self.lock:
            if len(self.kept) < 3:
                return
            name = self.random.choice(sorted(self.kept))
            self.kept.pop(name)
            self.open.add(name)
        server.sdk().files.delete(name)
        with self.lock:
            self.open.discard(name)
            self.gone.add(name)

    def overwrite(self, server):
        content = self.random.randbytes(self.random.choice([1, 200_000]))
        self.maybe.append(content)
        headers, params = {"x-api-key": server.keys[0]}, {"scope_id": self.container}
        answer = requests.put(server.url + "/api/gpt/v1/files/one", data=content, params=params, headers=headers, timeout=60)
        if answer.status_code == 200:
            self.content, self.maybe = content, []

    def capture(self, server):
        text = str(self.random.random())
        result, _ = server.bash(f'printf {text} > "$OUTPUT_DIR/out"; head -c 300000 /dev/zero > "$OUTPUT_DIR/big"')
        if result.get("content"):
            with self.lock:
                self.kept[result["content"][-1]["file_id"]] = hashlib.sha256(text.encode()).hexdigest()

    def look(self, server, data):
        """Everything that is listed is whole, and what was confirmed is as it was confirmed."""
        listed = {meta.id for meta in server.sdk().files.list(limit=1000)}
        assert set(self.kept) <= listed and not self.gone & listed
        for index in data.glob("files/v1/*/i/*.~"):
            meta = json.loads(index.read_text())
            content = index.parents[1] / "c" / meta["id"]
            digest = hashlib.sha256(content.read_bytes()).hexdigest()
            assert digest == meta["sha256"] == self.kept.get(meta["id"], digest) and meta["id"] in listed
        headers, params = {"x-api-key": server.keys[0]}, {"scope_id": self.container}
        place = "L21udC91c2VyLWRhdGEvdXBsb2Fkcy9vbmU"
        answer = requests.get(f"{server.url}/api/gpt/v1/files/{place}/content", params=params, headers=headers, timeout=60)
        found = answer.content if answer.status_code == 200 else None
        assert found == self.content or found in self.maybe, "the file is torn"
        if found is not None:
            self.content, self.maybe = found, []


def test_a_server_killed_at_any_moment_leaves_each_file_old_or_new(tmp_path, request):
    rounds = 200 if request.config.getoption("--long") else 12
    world, keys = World(7), None
    moments = random.Random(7)
    for number in range(rounds):
        server = start_server(tmp_path, keys=keys)
        keys = server.keys
        world.look(server, tmp_path / "data")
        over = threading.Event()

        def work(name):
            while not over.is_set():
                with contextlib.suppress(*TROUBLE, AssertionError, KeyError):
                    getattr(world, name)(server)
                    world.done[name] += 1

        workers = [threading.Thread(target=work, args=(name,)) for name in world.done]
        for worker in workers:
            worker.start()
        over.wait(moments.uniform(0.05, 0.8))
        over.set()
        server.process.kill()
        server.process.wait(timeout=60)
        for worker in workers:
            worker.join(timeout=120)
    server = start_server(tmp_path, keys=keys)
    world.look(server, tmp_path / "data")
    stop_server(server)
    assert all(count >= rounds // 6 for count in world.done.values()), world.done
