"""The server is killed at any moment of what it does with files: each is old or new, never torn, and never listed without its content;
and what the killed one left behind is gone after the next sweep. KILL_SEED=N chooses other moments."""

import contextlib
import datetime
import hashlib
import json
import os
import random
import threading
import time

import anthropic
import pytest
import requests
import small_s3
from conftest import fresh_id, start_server, stop_server, wait_until

pytestmark = pytest.mark.local
TROUBLE = (anthropic.APIError, requests.RequestException)
WORK = ("upload", "overwrite", "delete", "capture")
A_DAY = datetime.timedelta(hours=25)


class InFolder:
    """The store in the data folder, as it is on the disk."""

    def __init__(self, folder):
        self.place, self.settings = folder / "data/files/v1", (["--store", "folder"], {})

    def entries(self):
        return {path.name.split(".")[0]: json.loads(path.read_bytes()) for path in self.place.glob("*/i/*")}

    def contents(self):
        return {path.name: path.read_bytes for path in self.place.glob("*/c/*")}

    def unfinished(self):
        return list(self.place.glob("part/*"))

    def grow_old(self):
        for path in self.place.rglob("*"):
            past = path.stat().st_mtime - A_DAY.total_seconds()
            os.utime(path, (past, past))


class InBucket:
    """The store in a bucket, which outlives the server."""

    def __init__(self, _):
        self.bucket = small_s3.Bucket()
        self.settings = small_s3.settings(self.bucket)

    def objects(self, folder):
        with self.bucket.lock:
            found = [(path.split("/"), content) for path, content in self.bucket.objects.items()]
        return [(parts[5], content) for parts, content in found if parts[4] == folder]

    def entries(self):
        return {name.split(".")[0]: json.loads(content) for name, content in self.objects("i")}

    def contents(self):
        return {name: lambda content=content: content for name, content in self.objects("c")}

    def unfinished(self):
        return list(self.bucket.uploads)

    def grow_old(self):
        self.bucket.age = A_DAY


class World:
    """What the clients know: `kept` has certainly been stored, `gone` certainly deleted."""

    def __init__(self, seed):
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.kept, self.gone, self.looked_at = {}, set(), set()
        # By work: how often it began, when what is under way began, the shortest it ever took, and how often a kill came amid it.
        self.begun, self.running = dict.fromkeys(WORK, 0), {}
        self.shortest, self.amid = dict.fromkeys(WORK, 0.05), dict.fromkeys(WORK, 0)
        # The container's one file: the last content that was confirmed, and what may have taken its place.
        self.content, self.maybe, self.container = None, [], fresh_id()

    @contextlib.contextmanager
    def doing(self, work):
        with self.lock:
            self.begun[work] += 1
            self.running[work] = time.monotonic()
        try:
            yield
            with self.lock:
                self.shortest[work] = min(self.shortest[work], time.monotonic() - self.running[work])
        finally:
            with self.lock:
                self.running.pop(work)

    def upload(self, server):
        content = self.random.randbytes(self.random.choice([0, 100, 70_000, 3_000_000, 7_000_000]))
        with self.doing("upload"):
            made = server.sdk().files.upload(file=("a.bin", content))
        with self.lock:
            self.kept[made.id] = hashlib.sha256(content).hexdigest()

    def delete(self, server):
        with self.lock:
            name = self.random.choice(sorted(self.kept)) if len(self.kept) > 2 else None
            self.kept.pop(name, None)
        if not name:
            time.sleep(0.005)
            return
        with self.doing("delete"):
            server.sdk().files.delete(name)
        with self.lock:
            self.gone.add(name)

    def overwrite(self, server):
        content = self.random.randbytes(self.random.choice([1, 200_000]))
        self.maybe.append(content)
        headers, params = {"x-api-key": server.keys[0]}, {"scope_id": self.container}
        with self.doing("overwrite"):
            answer = requests.put(server.url + "/api/gpt/v1/files/one", data=content, params=params, headers=headers, timeout=60)
        if answer.status_code == 200:
            self.content, self.maybe = content, []

    def capture(self, server):
        text = str(self.random.random())
        with self.doing("capture"):
            result, _ = server.bash(f'printf {text} > "$OUTPUT_DIR/out"; head -c 300000 /dev/zero > "$OUTPUT_DIR/big"')
        with self.lock:
            for block in result.get("content", []):
                if server.get("/v1/files/" + block["file_id"]).json().get("filename") == "out":
                    self.kept[block["file_id"]] = hashlib.sha256(text.encode()).hexdigest()

    def look(self, server, store):
        """Everything that is listed is whole, and what was confirmed is as it was confirmed."""
        listed = {meta.id for meta in server.sdk().files.list(limit=1000)}
        entries, contents = store.entries(), store.contents()
        assert listed == set(entries) and set(self.kept) <= listed and not self.gone & listed
        for name in listed - self.looked_at:
            digest = hashlib.sha256(contents[name]()).hexdigest()
            assert digest == entries[name]["sha256"] == self.kept.get(name, digest)
        self.looked_at |= listed
        headers, params = {"x-api-key": server.keys[0]}, {"scope_id": self.container}
        place = "L21udC91c2VyLWRhdGEvdXBsb2Fkcy9vbmU"
        answer = requests.get(f"{server.url}/api/gpt/v1/files/{place}/content", params=params, headers=headers, timeout=60)
        found = answer.content if answer.status_code == 200 else None
        assert found == self.content or found in self.maybe, "the file is torn"
        if found is not None:
            self.content, self.maybe = found, []

    def kill_amid(self, server, work, moment):
        """Kills the server when this part of the shortest time of a work has passed since it began."""
        begun = self.begun[work]
        wait_until(lambda: self.begun[work] > begun, 60, every=0.001)
        time.sleep(moment * self.shortest[work])
        with self.lock:
            amid = list(self.running)
        server.process.kill()
        server.process.wait(timeout=60)
        for name in amid:
            self.amid[name] += 1


@pytest.mark.parametrize("kind", [InFolder, InBucket], ids=["folder", "bucket"])
def test_a_server_killed_at_any_moment_leaves_each_file_old_or_new(tmp_path, request, kind):
    rounds = 100 if request.config.getoption("--long") else 20
    seed = int(os.environ.get("KILL_SEED", 7))
    print(f"KILL_SEED={seed}")
    store, world, moments, keys = kind(tmp_path), World(seed), random.Random(seed), None
    flags, env = store.settings
    start = lambda: start_server(tmp_path, *flags, env=env, keys=keys)
    for number in range(rounds):
        server = start()
        keys = server.keys
        world.look(server, store)
        over = threading.Event()

        def work(name):
            while not over.is_set():
                with contextlib.suppress(*TROUBLE, AssertionError, KeyError):
                    getattr(world, name)(server)

        workers = [threading.Thread(target=work, args=(name,)) for name in WORK]
        for worker in workers:
            worker.start()
        world.kill_amid(server, WORK[number % len(WORK)], moments.random())
        over.set()
        for worker in workers:
            worker.join(timeout=120)
    print("killed amid", world.amid)
    assert all(count >= rounds // 5 for count in world.amid.values()), world.amid
    store.grow_old()
    server = start()
    wait_until(lambda: set(store.contents()) == set(store.entries()) and not store.unfinished(), 60)
    world.looked_at = set()
    world.look(server, store)
    stop_server(server)
