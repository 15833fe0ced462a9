"""The pages: what they name exists, what they print runs, and the site finds its parts. `make docs` builds the site."""

import ast
import contextlib
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import transformers_egrm
from transformers_egrm.cli import app


ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "model_cards/*.md",
        "examples/**/README.md",
        "transformers_egrm/**/README.md",
    )
    for path in ROOT.glob(pattern)
)
FOLDERS = ("benchmarks", "docs", "examples", "modeling", "model_cards", "tests", "transformers_egrm")
HOSTS = {"127.0.0.1", "arxiv.org", "github.com", "huggingface.co", "keepachangelog.com", "semver.org"}
"""Where a page may link to: papers, data, the standards that are followed, and the reader's own machine."""

LINK = re.compile(r"!?\[[^\]]+\]\((?!\w+:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w\.\w+(?![\w/*…])")
MODULE = re.compile(r"`(\w+_egrm\.py)`")
MACHINE = re.compile(r"(?<![\w./:…~-])/(?!dev/null)[a-z]{3,}/[\w.-]+|[A-Z]:\\")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def commands_of(page: str) -> list[str]:
    """The `egrm` commands of a page's shell blocks, one line each."""
    blocks = [code for language, code in FENCE.findall(text_of(page)) if language == "bash"]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r"&&|\|(?!\w)|;(?= )", line)]
    return [part.partition(" > ")[0] for part in parts if part.startswith("egrm ")]


COMMANDS = [(page, command) for page in PAGES for command in commands_of(page)]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_exists(page: str):
    targets = [match[1] for match in LINK.finditer(text_of(page))]
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str):
    named = set(PATH.findall(text_of(page))) | {f"modeling/{name}" for name in MODULE.findall(text_of(page))}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_paths_are_found_where_pages_name_them():
    assert PATH.findall("`modeling/a_egrm.py`, (docs/b.md) and python benchmarks/c.py --x") == [
        "modeling/a_egrm.py", "docs/b.md", "benchmarks/c.py",
    ]  # fmt: skip
    assert PATH.findall("runs/docs/b.md modeling/… examples/custom_generate/ladder") == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_no_folder_of_a_machine_and_no_unknown_host(page: str):
    text = text_of(page)
    assert MACHINE.findall(text) == []
    hosts = {host.removeprefix("www.") for host in re.findall(r"https?://([\w.-]+)", text)}
    assert hosts <= HOSTS


def test_folders_of_a_machine_are_noticed():
    for named in ("in /home/me/judge", "`/tmp/run`", "(/opt/wheels/x)", "C:\\Users"):
        assert MACHINE.search(named), named
    for named in (
        "./run",
        "short / long",
        "https://arxiv.org/abs/1",
        "2>/dev/null",
        "examples/train/x.yaml",
        "a/bc/d",
    ):
        assert not MACHINE.search(named), named


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_printed_command_is_one_that_egrm_takes(page: str, command: str):
    parse(command)


def test_commands_are_found_and_wrong_ones_refused():
    assert len(COMMANDS) >= 12
    assert {command.split()[1] for _, command in COMMANDS} >= {"build", "card", "compare", "rank", "score", "train"}
    for wrong in ("egrm score judge in.jsonl --tua 1", "egrm scores judge in.jsonl", "egrm rank judge"):
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            parse(wrong)


def parse(command: str) -> None:
    """Read a command line down to its last command, and run nothing."""
    parser: Any = typer.main.get_command(app)
    with contextlib.ExitStack() as contexts:
        parent, words = None, shlex.split(command, comments=True)
        while words:
            context = contexts.enter_context(parser.make_context(words[0], words[1:], parent=parent))
            if not hasattr(parser, "resolve_command"):
                return
            _, parser, rest = parser.resolve_command(context, [*context._protected_args, *context.args])
            parent, words = context, [parser.name, *rest]


def test_the_readmes_example_prints_what_it_shows(capsys):
    blocks = FENCE.findall(text_of("README.md"))
    place = next(place for place, (language, _) in enumerate(blocks) if language == "python")
    assert blocks[place + 1][0] == "", "its output follows it"
    exec(compile(blocks[place][1], "README.md", "exec"), {})
    assert capsys.readouterr().out == blocks[place + 1][1]


# -- the site -----------------------------------------------------------------------------------------------------------


def settings() -> dict[str, Any]:
    return yaml.safe_load(text_of("mkdocs.yml"))


def brought_in() -> dict[str, str]:
    """The pages that the site takes from outside `docs/`: file -> page. Read, because mkdocs need not be installed."""
    for statement in ast.parse(text_of("docs/site_hooks.py")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="BROUGHT_IN")], value=value):
                return ast.literal_eval(value)
    raise AssertionError("docs/site_hooks.py has no BROUGHT_IN")


def nav_pages(entries: list[Any]) -> list[str]:
    found = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found += [value] if isinstance(value, str) else nav_pages(value)
    return found


def test_the_site_has_every_page_once():
    pages = nav_pages(settings()["nav"])
    assert sorted(pages) == sorted(set(pages))
    own = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(pages) == own | set(brought_in().values())
    assert own.isdisjoint(brought_in().values())
    assert [source for source in brought_in() if not (ROOT / source).is_file()] == []


def test_the_site_asks_no_other_machine():
    site = settings()
    assert site["theme"]["font"] is False
    assert "analytics" not in site["extra"]
    assert [
        name for name in [*site["hooks"], *(f"docs/{css}" for css in site["extra_css"])] if not (ROOT / name).is_file()
    ] == []


def test_the_reference_documents_names_that_exist_and_all_that_are_exported():
    names = [
        name
        for page in PAGES
        if page.startswith("docs/api/")
        for name in re.findall(r"^::: (\S+)$", text_of(page), re.M)
    ]
    assert len(names) == len(set(names)) >= 15
    for name in names:
        pkgutil.resolve_name(name)
    exported = {f"transformers_egrm.{name}" for name in transformers_egrm.__all__ if name != "__version__"}
    assert exported <= {*names, "transformers_egrm.EGRMError"}, "EGRMError stands with the other errors"
