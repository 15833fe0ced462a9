"""`egrm`: help and version come at once, from a module that knows the commands and loads none of them."""

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version

import pytest
from cli_tools import egrm
from typer.main import get_command

import transformers_egrm_cli
from transformers_egrm import cli


ENTER = """
import json, sys
import transformers_egrm_cli
try:
    transformers_egrm_cli.main(sys.argv[1:])
except SystemExit as end:
    code = end.code
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps([code, sorted(loaded & {"torch", "transformers", "transformers_egrm", "numpy"})]), file=sys.stderr)
"""


def enter(*words: str, **variables: str) -> tuple[str, int, list[str]]:
    """What a fresh process prints, how it ends, and which slow packages it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", ENTER, *words], capture_output=True, text=True, check=True,
        env=os.environ | {"COLUMNS": "100"} | variables,
    )  # fmt: skip
    code, loaded = json.loads(done.stderr.splitlines()[-1])
    return done.stdout, code, loaded


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_loads_nothing_slow_and_is_the_help_of_the_real_program(words, capsys, monkeypatch):
    printed, code, loaded = enter(*words)
    assert loaded == []
    monkeypatch.setenv("COLUMNS", "100")
    assert egrm(*words) == code
    real = capsys.readouterr()
    assert printed == real.out
    assert all(name in printed for name in transformers_egrm_cli.COMMANDS)


def test_version_loads_nothing_slow(capsys):
    printed, code, loaded = enter("--version")
    assert (printed, code, loaded) == (f"egrm {version('transformers-egrm')}\n", 0, [])
    assert egrm("--version") == 0
    assert capsys.readouterr().out == printed


def test_the_outline_lists_the_commands_of_the_real_program_with_their_first_sentences():
    commands = get_command(cli.app).commands
    sentences = {name: command.get_short_help_str(limit=500) for name, command in commands.items()}
    assert list(sentences.items()) == list(transformers_egrm_cli.COMMANDS.items())


def test_help_takes_less_than_half_a_second_of_a_processor():
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "transformers_egrm_cli", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize(
    "words", [["card", "nowhere"], ["score"], ["--hepl"], ["score", "--help"], ["train", "sft", "-h"]]
)
def test_everything_else_goes_to_the_real_program(words, monkeypatch):
    asked = []
    monkeypatch.setattr(cli, "main", asked.append)
    transformers_egrm_cli.main(words)
    assert asked == [words]


def test_a_shell_that_completes_a_command_is_told_every_option():
    instruction = {"_EGRM_COMPLETE": "complete_bash", "COMP_WORDS": "egrm score --reor", "COMP_CWORD": "2"}
    printed, _, loaded = enter(**instruction)
    assert printed.split() == ["--reorder-window"]
    assert "transformers_egrm" in loaded
