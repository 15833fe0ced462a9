"""Where training examples come from: a world that streams them, or JSONL files."""

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any, Protocol

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.config import DataConfig


class Example(Protocol):
    """One response to judge, with the truth about it."""

    @property
    def question_id(self) -> str:
        """The same for every response to a question."""
        ...

    @property
    def domain(self) -> str:
        """What it is about."""
        ...

    @property
    def difficulty(self) -> int:
        """1 is the easiest."""
        ...

    @property
    def prompt(self) -> str:
        """The question."""
        ...

    @property
    def response(self) -> str:
        """What is judged."""
        ...

    @property
    def verdict(self) -> int:
        """The truth."""
        ...

    @property
    def chain(self) -> str:
        """Worked reasoning that ends in the truth, without the verdict line."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileExample:
    """An example read from a file."""

    question_id: str
    """The same for every response to a question."""
    prompt: str
    """The question."""
    response: str
    """What is judged."""
    verdict: int
    """The truth."""
    chain: str
    """Worked reasoning that ends in the truth, without the verdict line."""
    domain: str = "all"
    """What it is about."""
    difficulty: int = 1
    """1 is the easiest."""


def draw_examples(data: DataConfig, split: str, count: int, seed: int) -> list[Example]:
    """The first examples of a split.

    Args:
        data: World or files.
        split: `train`, `calibration` or `test`.
        count: How many at most; files may hold fewer.
        seed: Of the world's stream: the run's for training, `evaluation.stream` for what is measured on.

    Raises:
        ConfigError: The world or the file cannot be used.
    """
    if data.files:
        if split not in data.files:
            raise ConfigError(f"`data.files` must name a file for {split}, got {sorted(data.files)}.")
        found: list[Example] = list(islice(_read_file(data.files[split]), count))
        if not found:
            raise ConfigError(f"{data.files[split]} must hold at least one example, but holds none.")
        return found
    options = data.options if split == "train" or data.held_out_options is None else data.held_out_options
    return list(islice(_module(data.world, "examples").examples(split, seed, **options), count))


def make_tokenizer(
    data: DataConfig, examples: list[Example], texts: list[str], phrases: list[str], vocab_size: int
) -> Any:
    """A tokenizer for the world's texts.

    Args:
        data: Its world brings `train_tokenizer`; the synthetic world's is used for files.
        examples: What the judge will read and write.
        texts: What else it will write: verdicts.
        phrases: What every judge prompt repeats; each becomes one token, so that the prompt stays short.
        vocab_size: Most entries.
    """
    world = _module(DataConfig.world if data.files else data.world, "train_tokenizer")
    # A verdict stands behind every chain: as often as the examples, each of their words is worth an entry.
    spoken = (text for example in examples for text in (example.prompt, example.response, example.chain, *texts))
    return world.train_tokenizer(spoken, vocab_size, phrases)


def _module(name: str, needed: str) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"`data.world` must be a module that can be imported, got {name!r}: {error}.") from error
    if not hasattr(module, needed):
        raise ConfigError(f"`data.world` must have a function `{needed}`, but {name} has none.")
    return module


def _read_file(path: str) -> Iterator[FileExample]:
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield _file_example(json.loads(line))
                    except (ValueError, TypeError) as error:
                        raise ConfigError(f"Line {number} of {path} is no example: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The examples {path} must be a readable JSONL file: {error}.") from error


def _file_example(values: Any) -> FileExample:
    example = FileExample(**values)
    for name, kind in FileExample.__annotations__.items():
        value = getattr(example, name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"`{name}` must be of type {kind.__name__}, got {value!r}.")
    return example


__all__ = ["Example", "draw_examples", "make_tokenizer"]
