"""The command line: `egrm build | score | compare | rank | card | calibrate | serve | client | export | train | bench`.

Each command is a file of its own. Errors of the library end with a message and exit code 1, wrong usage with 2. The
script `egrm` enters through `transformers_egrm_cli`, which answers `--help` and `--version` without this package.
"""

import sys
from collections.abc import Sequence

from transformers_egrm.cli.bench import app as bench_app
from transformers_egrm.cli.build import EXAMPLES as build_examples
from transformers_egrm.cli.build import build
from transformers_egrm.cli.calibrate import EXAMPLES as calibrate_examples
from transformers_egrm.cli.calibrate import calibrate
from transformers_egrm.cli.card import EXAMPLES as card_examples
from transformers_egrm.cli.card import card
from transformers_egrm.cli.client import EXAMPLES as client_examples
from transformers_egrm.cli.client import client
from transformers_egrm.cli.compare import EXAMPLES as compare_examples
from transformers_egrm.cli.compare import compare
from transformers_egrm.cli.export import EXAMPLES as export_examples
from transformers_egrm.cli.export import export
from transformers_egrm.cli.rank import EXAMPLES as rank_examples
from transformers_egrm.cli.rank import rank
from transformers_egrm.cli.score import EXAMPLES as score_examples
from transformers_egrm.cli.score import score
from transformers_egrm.cli.serve import EXAMPLES as serve_examples
from transformers_egrm.cli.serve import serve
from transformers_egrm.cli.summary import message_console
from transformers_egrm.cli.train import app as train_app
from transformers_egrm.cli.train_assessor import EXAMPLES as assessor_examples
from transformers_egrm.cli.train_assessor import assessor
from transformers_egrm.modeling.errors_egrm import EGRMError
from transformers_egrm_cli import new_program


app = new_program()
for _command, _examples in (
    (build, build_examples),
    (score, score_examples),
    (compare, compare_examples),
    (rank, rank_examples),
    (card, card_examples),
    (calibrate, calibrate_examples),
    (serve, serve_examples),
    (client, client_examples),
    (export, export_examples),
):
    # In a help text a blank line is what keeps two lines apart, and a line break in a docstring would be kept.
    _help = "\n\n".join(" ".join(paragraph.split()) for paragraph in (_command.__doc__ or "").split("\n\n"))
    app.command(help=_help, epilog="\n\n".join(("Examples:", *_examples)))(_command)
train_app.command(epilog="\n\n".join(("Examples:", *assessor_examples)))(assessor)
app.add_typer(train_app, name="train")
app.add_typer(bench_app, name="bench")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Words after the program's name, by default those of this process.

    Raises:
        SystemExit: Always; its code is 0 on success.
    """
    try:
        app(args=None if arguments is None else list(arguments), prog_name="egrm")
    except EGRMError as error:
        message_console().print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


__all__ = ["app", "main"]
