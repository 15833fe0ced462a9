"""What a result was made from: digests of code, model, prompt and data, and the versions of the libraries."""

import hashlib
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers_egrm.evaluation.asking import Question


_LIBRARIES = ("transformers-egrm", "transformers", "torch", "tokenizers", "numpy", "scikit-learn")
_SHORT = 16
_PROBE = {"prompt": "What is 2 + 3?", "response": "5", "response_a": "5", "response_b": "6", "responses": ["5", "6"]}
_FIELDS = {
    "pointwise": ("response",),
    "binary": ("response",),
    "pairwise": ("response_a", "response_b"),
    "listwise": ("responses",),
    "free": (),
}


def questions_digest(questions: Iterable[Question]) -> str:
    """A digest of everything that was read: the same for one data set in any file format."""
    digest = hashlib.sha256()
    for question in questions:
        digest.update(question.digest())
    return digest.hexdigest()[:_SHORT]


def folder_digest(folder: str | Path) -> str | None:
    """A digest of the names and contents of a folder's files; None where there is no such folder."""
    root = Path(folder)
    if not root.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode())
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:_SHORT]


def code_digest() -> str:
    """A digest of this package's source files."""
    root = Path(__file__).parents[1]
    # The model code is a mapped folder, or a link that a walk does not follow; its package knows where it is.
    model_code = find_spec("transformers_egrm.modeling")
    digest = hashlib.sha256()
    for folder in (root, *map(Path, (model_code and model_code.submodule_search_locations) or ())):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:_SHORT]


def prompt_digest(processor: Any, space: dict[str, Any], rubric: str | None) -> str:
    """A digest of a judge prompt as token ids: it changes with template, rubric, guard and tokenizer."""
    record = {name: _PROBE[name] for name in ("prompt", *_FIELDS[space["kind"]])}
    item = processor.encode(record, space=space, rubric=rubric)
    return hashlib.sha256(repr(item.prompts).encode()).hexdigest()[:_SHORT]


def environment() -> dict[str, Any]:
    """Versions of what computes, and the machine's kind."""
    return {
        "code_digest": code_digest(),
        "python": platform.python_version(),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name)) is not None},
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


__all__ = ["code_digest", "environment", "folder_digest", "prompt_digest", "questions_digest"]
