"""Write `custom_generate` folders: a decoding method of this library that any causal LM can use by path.

The files are copies of the model code, made by this one function; a test holds the committed copies to the source.
"""

from pathlib import Path
from shutil import copyfile

from transformers.dynamic_module_utils import get_relative_import_files

from transformers_egrm.modeling import engine_generate_egrm


_SOURCES = Path(engine_generate_egrm.__file__).parent
# Repositories under examples/custom_generate, and the model file that holds the `generate` of each.
DECODERS = {"ladder": "engine_generate_egrm", "speculative": "draft_generate_egrm"}


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
    entry = _SOURCES / f"{module}.py"
    copies = {entry: target / "generate.py"}
    copies |= {path: target / path.name for path in sorted(map(Path, get_relative_import_files(entry)))}
    for source, copy in copies.items():
        copyfile(source, copy)
    return list(copies.values())


def write_all(folder: str | Path) -> list[Path]:
    """Write one repository for each decoding method of `DECODERS`.

    Args:
        folder: Where they lie side by side.

    Returns:
        The files written.
    """
    return [path for name, module in DECODERS.items() for path in write_custom_generate(Path(folder) / name, module)]


__all__ = ["DECODERS", "write_all", "write_custom_generate"]
