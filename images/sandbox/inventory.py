"""inventory.py CONTENTS: what this machine has of CONTENTS, the text of contents.txt, as JSON.

`libraries` holds what models are told: names with their versions. `absent` holds the names of what is missing.
"""

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import sys


def found(kind, name, how):
    """The name, with its version where it has one; nothing when it is not there."""
    if kind == "tool":
        return name if shutil.which(how) else None
    if importlib.util.find_spec(how) is None:
        return None
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def inventory(contents):
    rows = [line.split() for line in contents.splitlines() if line and not line.startswith("#")]
    have = {name: found(kind, name, how) for kind, name, how in rows}
    libraries = [f"Python {platform.python_version()}", *filter(None, have.values())]
    return {"libraries": libraries, "absent": [name for name, there in have.items() if not there]}


if __name__ == "__main__":
    print(json.dumps(inventory(sys.argv[1]), indent=2))
