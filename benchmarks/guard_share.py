"""How often the injection guard changes an honest text, measured over code and mathematics.

    python benchmarks/guard_share.py --code FOLDER --json rm_bench_chat.json --lines gsm8k.jsonl math500.jsonl

Every text is neutralised as it would be shown to each kind of judge; a text counts as touched where any of them changes it.
`--format` names the form that the judge writes its verdicts in.
Of a `.json` file, the code blocks in any string are texts; of a `.jsonl` file, every string of a line is one; of a folder,
every Python file. Without `--code`, the installed sources of torch and transformers are sampled.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers_egrm import EGRMProcessor, load_mini
from transformers_egrm.modeling.prompt_guard_egrm import TextGuard
from transformers_egrm.modeling.verdict_forms_egrm import FORMS
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


FREE = VerdictSpace.free()  # it has no labels: what it changes, every space does


def spaces_of(form: str) -> tuple[VerdictSpace, ...]:
    """A verdict space of every kind that has labels, in one form."""
    return (
        VerdictSpace.pointwise(verdict_format=form),
        VerdictSpace.binary(verdict_format=form),
        VerdictSpace.pairwise(allow_tie=True, verdict_format=form),
        VerdictSpace.listwise(10, verdict_format=form),
    )


_BLOCK = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)


def strings_of(value: Any) -> Iterator[str]:
    """Every string inside a value read from JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings_of(inner)


def blocks_of(path: Path) -> list[str]:
    """Code blocks of every string of a JSON file, each once."""
    texts = strings_of(json.loads(path.read_text("utf-8")))
    return list(dict.fromkeys(block for text in texts for block in _BLOCK.findall(text)))


def lines_of(path: Path) -> list[str]:
    """Every string of a JSONL file, each once."""
    lines = path.read_text("utf-8").splitlines()
    return list(dict.fromkeys(text for line in lines if line.strip() for text in strings_of(json.loads(line))))


def sources_of(folder: Path, count: int, seed: int) -> list[str]:
    """A sample of a folder's Python files."""
    paths = sorted(folder.rglob("*.py"))
    chosen = paths if len(paths) <= count else random.Random(seed).sample(paths, count)
    return [text for path in chosen if (text := path.read_text("utf-8", errors="replace")).strip()]


def reasons_of(guard: TextGuard, plain: TextGuard, spaces: Sequence[VerdictSpace], text: str) -> set[str]:
    """Why a text is changed; empty where it is left as it is."""
    found = set()
    if any(space.quote(text) != text for space in spaces):
        found.add("a verdict line")
    if guard.neutralise(text, True, FREE) != guard.neutralise(text, False, FREE):
        found.add("a delimiter of ours")
    if plain.neutralise(text, False, FREE) != text:
        found.add("a turn mark, without a chat template only")
    return found


def main() -> None:
    """Print a row for each source of texts."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--code", type=Path, nargs="*", help="folders of Python files; torch and transformers by default"
    )
    parser.add_argument("--json", type=Path, nargs="*", default=[], help="JSON files whose code blocks are texts")
    parser.add_argument("--lines", type=Path, nargs="*", default=[], help="JSONL files whose strings are texts")
    parser.add_argument("--files", type=int, default=1000, help="Python files sampled from each folder")
    parser.add_argument("--format", choices=FORMS, default="verdict", help="form of the verdicts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    given = parser.parse_args()
    installed = [find_spec(name) for name in ("torch", "transformers")]
    folders = given.code or [Path(str(spec.origin)).parent for spec in installed if spec is not None]
    sources = {f"{path.parent.name}/{path.name}, code blocks": blocks_of(path) for path in given.json}
    sources |= {folder.name: sources_of(folder, given.files, given.seed) for folder in folders}
    sources |= {f"{path.parent.name}/{path.name}": lines_of(path) for path in given.lines}
    tokenizer = load_mini().processor.tokenizer
    guard = EGRMProcessor(tokenizer)._guard
    bare = deepcopy(tokenizer)
    bare.chat_template = None
    plain = EGRMProcessor(bare)._guard
    spaces = spaces_of(given.format)
    print("| texts | number | touched | share | reasons |\n|---|---:|---:|---:|---|")
    for name, texts in sources.items():
        reasons = [found for text in texts if (found := reasons_of(guard, plain, spaces, text))]
        told = Counter(reason for found in reasons for reason in found)
        share = f"{len(reasons) / max(1, len(texts)):.2%}"
        why = ", ".join(f"{reason}: {count}" for reason, count in told.most_common())
        print(f"| {name} | {len(texts)} | {len(reasons)} | {share} | {why} |")


if __name__ == "__main__":
    main()
