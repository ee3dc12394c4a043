"""What is missing on a machine is named in one sentence, with what to do."""

import pathlib
import shutil
import subprocess

import pytest

from conftest import ROOT

pytestmark = pytest.mark.local
BASICS = ["bash", "cut", "df", "dirname", "head", "mkdir", "printf", "sed", "sort", "tail"]


def machine(folder, **programs):
    """A machine that has the basics, and programs that print what is given."""
    folder.mkdir()
    for name in BASICS:
        (folder / name).symlink_to(shutil.which(name))
    for name, says in programs.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/bash\necho '{says}'\n")
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("thing", "programs", "words"),
    [
        ("rust", {}, ["Rust is missing", "rustup"]),
        ("rust", {"cargo": "cargo 1.70.0", "rustc": "rustc 1.70.0 (x)"}, ["1.70.0", "too old", "rustup update"]),
        ("cc", {}, ["C compiler", "build-essential"]),
        ("bubblewrap", {"apt_get": "", "id": "1000"}, ["bubblewrap is missing", "sudo apt-get install -y bubblewrap"]),
        ("bubblewrap", {}, ["bubblewrap is missing", "no apt-get"]),
        ("node", {}, ["Node.js is missing", "18"]),
        ("node", {"node": "v16.1.0", "npm": "8"}, ["16.1.0", "too old"]),
        ("python", {"apt_get": "", "id": "1000"}, ["Python 3 is missing", "sudo apt-get install"]),
    ],
)
def test_a_missing_thing_is_one_sentence(tmp_path, thing, programs, words):
    path = machine(tmp_path / "bin", **programs)
    ended = subprocess.run([ROOT / "e2e/require", thing], env={"PATH": str(path)}, capture_output=True, text=True)
    lines = ended.stderr.strip().splitlines()
    assert ended.returncode == 1 and len(lines) == 1 and lines[0].startswith("error: "), ended.stderr
    assert all(word in lines[0] for word in words), lines[0]


def test_a_full_disk_is_named(tmp_path):
    path = machine(tmp_path / "bin")
    (path / "df").unlink()
    (path / "df").write_text("#!/bin/bash\nprintf 'Avail\\n1024\\n'\n")
    (path / "df").chmod(0o755)
    ended = subprocess.run([ROOT / "e2e/require", "disk"], env={"PATH": str(path)}, capture_output=True, text=True)
    assert ended.returncode == 1 and "1 MiB free" in ended.stderr and "free some space" in ended.stderr, ended.stderr
