"""Fits two libraries to an image that is read-only, without a network, and with a home that is new each time. Run once, by the build.

matplotlib keeps a list of the fonts in the user's home, and takes long to make one. Here the list is made once, and read from the image;
one in the home is still preferred. Text falls back to fonts that have the characters of its language, and to symbols.

pip says that there is no such package where it could not ask; here it says that there is no network.
"""

import pathlib
import re
import shutil

import matplotlib
from matplotlib import font_manager
from pip._internal.index import collector

FAMILIES = ["DejaVu Sans", "Noto Sans CJK JP", "Symbola"]


def replace(module, old, new):
    """Changes the source of a module, which must hold the text once."""
    source = pathlib.Path(module.__file__)
    text = source.read_text()
    assert text.count(old) == 1, f"{source} is not what it was: it has {text.count(old)} times {old!r}"
    source.write_text(text.replace(old, new))


replace(font_manager, "fm = json_load(fm_path)", "fm = json_load(fm_path if fm_path.exists() else Path(__file__).with_name(fm_path.name))")
missing = set(FAMILIES) - {font.name for font in font_manager.fontManager.ttflist}
assert not missing, f"these fonts are missing: {missing}"
name = f"fontlist-v{font_manager.FontManager.__version__}.json"
shutil.copy(pathlib.Path(matplotlib.get_cachedir()) / name, pathlib.Path(font_manager.__file__).with_name(name))

settings = pathlib.Path(matplotlib.get_data_path()) / "matplotlibrc"
text, count = re.subn(r"(?m)^#?font\.family:.*$", f"font.family: {', '.join(FAMILIES)}", settings.read_text())
assert count == 1, f"{settings} names font.family {count} times"
settings.write_text(text)

replace(
    collector,
    '_handle_get_simple_fail(link, f"connection error: {exc}")',
    '_handle_get_simple_fail(link, "this sandbox has no network, or none that leads there; `pip list` shows what is installed", logger.warning)',
)
