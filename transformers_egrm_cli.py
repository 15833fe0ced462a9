"""`egrm`: the way into the command line. It lies outside the package, because importing the package imports PyTorch.

`egrm --help` and `egrm --version` are answered here within half a second. Everything else goes to
`transformers_egrm.cli`, which builds the same program with its real commands.
"""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer


COMMANDS = {
    "build": "Build a checkpoint from components.",
    "score": "Score answers one by one.",
    "compare": "Compare two answers, in both orders.",
    "rank": "Rank the answers to one question.",
    "card": "Render the model card of a checkpoint from its configuration and weights.",
    "calibrate": "Set a judge's threshold from labels, with a promise that holds at the confidence asked for.",
    "serve": "Serve a judge over HTTP.",
    "client": "Write the client of `egrm serve` to stdout, as one file of Python.",
    "export": "Write generator and scorer of a judge as plain folders, which vLLM, SGLang and others load.",
    "train": "Train a judge: routed fine-tuning, then a scorer of chains, then reinforcement learning.",
    "bench": "Judges on benchmarks and on your own file: accuracies with intervals, biases, costs and rivals.",
}
"""Every command with the first sentence of its help, in order; a test holds them to the real ones."""

_ANSWERED_HERE = ([], ["--help"], ["-h"], ["--version"])


def new_program() -> typer.Typer:
    """The program without its commands: help text and the options before a command."""
    program = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )

    @program.callback()
    def egrm(
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        """Judge answers with an efficient generative reward model: short verdicts where they agree, thought where not."""

    return program


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Words after the program's name, by default those of this process.

    Raises:
        SystemExit: Always; its code is 0 on success.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # A shell that completes a half-written command calls without words and needs to know every option.
    if words in _ANSWERED_HERE and "_EGRM_COMPLETE" not in os.environ:
        _outline()(args=words, prog_name="egrm")
    from transformers_egrm.cli import main as run

    run(words)


def _outline() -> typer.Typer:
    """The program as its help shows it: commands with a name and a sentence, and nothing to run."""
    program = new_program()
    for name, sentence in COMMANDS.items():
        program.command(name, help=sentence)(lambda: None)
    return program


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"egrm {version('transformers-egrm')}")
        raise typer.Exit


if __name__ == "__main__":
    main()


__all__ = ["COMMANDS", "main", "new_program"]
