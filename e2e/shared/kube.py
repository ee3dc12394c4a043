"""What the tests of every folder here do with kubectl."""

import os
import subprocess
import time


def kubectl(*arguments, namespace=os.environ.get("CODEEXEC_TEST_SANDBOXES", ""), ok=True, stdin=None):
    """What kubectl says, by default of the sandboxes' namespace; `ok=False` accepts a failure and its words."""
    ended = subprocess.run(["kubectl", "-n", namespace, *arguments], capture_output=True, text=True, input=stdin, timeout=180)
    assert not ok or ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout if ok else ended.stdout + ended.stderr


def wait_until(condition, seconds=60, what="it", every=0.1):
    """The first value of `condition` that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(every)
    return value
