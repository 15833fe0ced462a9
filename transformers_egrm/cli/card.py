"""`egrm card`: the model card of a checkpoint."""

from collections import Counter
from math import prod
from pathlib import Path
from typing import Annotated

import typer
from safetensors import SafetensorError, safe_open

from transformers_egrm.bundle import folder_of
from transformers_egrm.cli.loading import identity
from transformers_egrm.cli.summary import message_console
from transformers_egrm.data.records import STDIO
from transformers_egrm.modeling.errors_egrm import ModelError


EXAMPLES = (
    "egrm card ./judge",
    "egrm card ./judge -o ./judge/README.md",
)


def card(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="`egrm-mini`, or a folder made by `egrm build` or `egrm train`.")
    ],
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="File to write; - writes to stdout.")
    ] = STDIO,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a card that was edited by hand.")] = False,
) -> None:
    """Render the model card of a checkpoint from its configuration and weights.

    A card that was written or edited by hand is not replaced.
    """
    from transformers_egrm.modeling.configuration_egrm import EGRMConfig
    from transformers_egrm.modeling.hub_card_egrm import is_rendered, render_card

    folder = folder_of(folder)
    identity(folder, None)
    if not Path(folder).is_dir():
        raise ModelError(f"The checkpoint must be a folder on this machine, got {folder!r}.")
    text = render_card(EGRMConfig.from_pretrained(folder), count_parameters(Path(folder)))
    if output == STDIO:
        typer.echo(text, nl=False)
        return
    path = Path(output)
    try:
        if path.exists() and not overwrite and not is_rendered(path.read_text("utf-8")):
            raise ModelError(f"{path} was written or edited by hand.", "Pass --overwrite to replace it.")
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ModelError(f"-o {path} must be a file that can be written: {error.strerror}.") from error
    message_console().print(f"Wrote {path}.", markup=False, soft_wrap=True)


def count_parameters(folder: Path) -> dict[str, int]:
    """Parameters of each component, read from the headers of a folder's weight files.

    Args:
        folder: A checkpoint.

    Raises:
        ModelError: It has no weights, or they are damaged.
    """
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (not a dict)
                    counts[name.partition(".")[0]] += prod(weights.get_slice(name).get_shape())
        except SafetensorError as error:
            raise ModelError(
                f"{path} is not a complete safetensors file: {error}.", "Save the model again."
            ) from error
    if not counts:
        raise ModelError(f"The folder must hold .safetensors files, but {folder} holds none.", "Save the model again.")
    return dict(sorted(counts.items()))


__all__ = ["EXAMPLES", "card", "count_parameters"]
