"""Models by path or Hub id, for the command line: clear errors instead of tracebacks, and an identity to compare."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from transformers_egrm.bundle import folder_of
from transformers_egrm.modeling.errors_egrm import EGRMError, ModelError


def load_model(
    model: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None, engine: str | None = None
) -> Any:
    """An `EGRMRewardModel` in eval mode.

    Args:
        model: Folder made by `egrm build`, `egrm train` or `save_pretrained`, a Hub id, or `egrm-mini`, the bundled one.
        device: As `torch.device` reads it, or `auto`: the accelerator where there is one.
        dtype: As `torch` names it, or `auto`: the checkpoint's.
        revision: Branch, tag or commit on the Hub.
        engine: Address of the server that runs the generator, whose weights are not loaded then; None: it runs here.

    Raises:
        ModelError: The model, device or dtype cannot be used.
        EngineError: The server cannot be reached, or is none that is known.
    """
    from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel

    target = parse_device(device)
    number_format = parse_dtype(dtype)
    loaded: Any
    with _explained("model", model, "a folder made by `egrm build` or `save_pretrained`, or a Hub id"):
        if engine is not None:
            return _load_for_engine(folder_of(model), engine, revision, target)
        loaded = EGRMRewardModel.from_pretrained(folder_of(model), revision=revision, dtype=number_format)
        loaded.processor  # noqa: B018 (a checkpoint without one is refused here, not at the first record)
        return loaded.to(target).eval()


def _load_for_engine(folder: str, engine: str, revision: str | None, target: torch.device) -> Any:
    from transformers_egrm.engines import connect, load_without_generator

    loaded = load_without_generator(folder, revision)
    if loaded.scorer is not None:
        loaded.scorer.to(target)
    loaded.engine = connect(engine, loaded.processor, loaded.backbone.cost)
    return loaded


def load_generator(generator: str, *, dtype: str = "auto", revision: str | None = None) -> tuple[Any, Any]:
    """A causal language model and its tokenizer.

    Args:
        generator: Folder, `.gguf` file (local, or `owner/name/file.gguf` on the Hub) or Hub id.
        dtype: See `load_model`; a GGUF file's `auto` is float32.
        revision: Branch, tag or commit on the Hub.

    Raises:
        ModelError: It cannot be loaded.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, gguf = _split_gguf(generator)
    number_format = parse_dtype("float32" if gguf and dtype == "auto" else dtype)
    arguments = {"gguf_file": gguf} if gguf else {}
    with _explained("generator", generator, "a folder, a .gguf file or a Hub id of a causal language model"):
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, **arguments)
        model = AutoModelForCausalLM.from_pretrained(source, revision=revision, dtype=number_format, **arguments)
        return model.eval(), tokenizer


def load_encoder(encoder: str) -> tuple[Any, Any]:
    """An encoder in float32 and its tokenizer.

    Raises:
        ModelError: It cannot be loaded.
    """
    from transformers import AutoModel, AutoTokenizer

    with _explained("scorer", encoder, "a folder or a Hub id of an encoder such as BERT"):
        tokenizer = AutoTokenizer.from_pretrained(encoder)
        return AutoModel.from_pretrained(encoder, dtype=torch.float32).eval(), tokenizer


def _split_gguf(generator: str) -> tuple[str, str | None]:
    """Folder or Hub id, and the name of the GGUF file in it."""
    if not generator.lower().endswith(".gguf"):
        return generator, None
    path = Path(generator)
    if path.is_file():
        return str(path.parent), path.name
    parts = generator.split("/")
    if len(parts) < 3 or path.is_absolute() or parts[0].startswith("."):
        raise ModelError(f"The GGUF file must exist, got {generator!r}.", "On the Hub: owner/name/file.gguf.")
    return "/".join(parts[:2]), "/".join(parts[2:])


@contextmanager
def _explained(what: str, name: str, needed: str) -> Iterator[None]:
    """Turns whatever Transformers, safetensors, tokenizers or the Hub client raise into one error."""
    try:
        with bars_where_watched():
            yield
    except EGRMError:
        raise
    except Exception as error:
        raise ModelError(
            f"The {what} must be {needed}; {name!r} cannot be loaded: {type(error).__name__}: {first_line(error)}",
            "Check the path and whether its files are complete.",
        ) from error


def is_watched() -> bool:
    """Whether what goes to stderr appears on a terminal."""
    return sys.stderr.isatty()


@contextmanager
def bars_where_watched() -> Iterator[None]:
    """Progress bars of loading and saving only on a terminal: a log has no use for them."""
    from transformers.utils import logging

    hidden = logging.is_progress_bar_enabled() and not is_watched()
    if hidden:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hidden:
            logging.enable_progress_bar()


def identity(model: str, revision: str | None) -> dict[str, Any]:
    """What tells one model from another without reading its weights: names, sizes and times of a folder's files.

    Raises:
        ModelError: The folder holds no model.
    """
    if "\0" in model:
        raise ModelError(f"The model must be a folder or a Hub id, got {model!r} with a NUL character in it.")
    folder = Path(folder_of(model))
    try:
        if not folder.exists():
            return {"model": model, "revision": revision}
        if not (folder / "config.json").is_file():
            raise ModelError(f"The model must be a folder with a config.json, got {model!r}.",
                             "Make one with `egrm build GENERATOR -o FOLDER`.")  # fmt: skip
        stats = [(str(path.relative_to(folder)), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    except OSError as error:
        raise ModelError(f"The model's folder {model!r} cannot be read: {error.strerror or error}.") from error
    listing = [(name, stat.st_size, int(stat.st_mtime)) for name, stat in stats if "__pycache__" not in name]
    return {"model": str(folder.resolve()), "model_files": hashlib.sha256(repr(listing).encode()).hexdigest()[:16]}


def parse_device(device: str) -> torch.device:
    """The device of that name.

    Raises:
        ModelError: There is none.
    """
    try:
        if device == "auto":
            return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ModelError(f"--device must name a device of this machine, got {device!r}: {first_line(error)}.",
                         "Use auto or cpu.") from error  # fmt: skip


def parse_dtype(dtype: str) -> Any:
    """The torch dtype of that name, or `auto`.

    Raises:
        ModelError: There is none.
    """
    known = ("float32", "bfloat16", "float16")
    if dtype not in ("auto", *known):
        raise ModelError(f"--dtype must be auto or one of {', '.join(known)}, got {dtype!r}.")
    return dtype if dtype == "auto" else getattr(torch, dtype)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; some run to pages."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


__all__ = [
    "bars_where_watched",
    "identity",
    "is_watched",
    "load_encoder",
    "load_generator",
    "load_model",
    "parse_device",
    "parse_dtype",
]
