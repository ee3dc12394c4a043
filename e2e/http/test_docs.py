"""The commands of docs/api.md, as they are printed there."""

import json
import re
import subprocess

import pytest
from conftest import ROOT

BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs/api.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command", BLOCKS)
def test_a_command_of_the_page_is_answered(server, command):
    environment = {"URL": server.url, "KEY": server.keys[0], "PATH": "/usr/bin:/bin"}
    run = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(run.stdout)
    assert answer["type"] == "message" and answer["stop_reason"] == "end_turn", answer


def test_the_page_has_commands():
    assert len(BLOCKS) == 2
