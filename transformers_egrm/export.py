"""Write `custom_generate` folders: a decoding method of this library that any causal LM can use by path.

The files are copies of the model code, made by this one function; a test holds the committed copies to the source.
"""

import re
from pathlib import Path
from shutil import copyfile

from transformers_egrm.modeling import engine_generate_egrm


_SOURCES = Path(engine_generate_egrm.__file__).parent
# Repositories under examples/custom_generate, and the model file that holds the `generate` of each.
DECODERS = {"ladder": "engine_generate_egrm", "speculative": "draft_generate_egrm"}
_IMPORT = re.compile(r"^from \.(\w+) import", re.MULTILINE)


def write_custom_generate(folder: str | Path, module: str = "engine_generate_egrm") -> list[Path]:
    """Write the folder `custom_generate/` of a repository: `generate.py` and every file it needs.

    Args:
        folder: The repository, made if absent.
        module: Name of the model file that holds `generate`.

    Returns:
        The files written.
    """
    target = Path(folder) / "custom_generate"
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name in _closure(module):
        path = target / ("generate.py" if name == module else f"{name}.py")
        copyfile(_SOURCES / f"{name}.py", path)
        written.append(path)
    return written


def write_all(folder: str | Path) -> list[Path]:
    """Write one repository for each decoding method of `DECODERS`.

    Args:
        folder: Where they lie side by side.

    Returns:
        The files written.
    """
    return [path for name, module in DECODERS.items() for path in write_custom_generate(Path(folder) / name, module)]


def _closure(module: str) -> list[str]:
    found, waiting = [], [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.append(name)
            waiting += _IMPORT.findall((_SOURCES / f"{name}.py").read_text(encoding="utf-8"))
    return sorted(found)


__all__ = ["DECODERS", "write_all", "write_custom_generate"]
