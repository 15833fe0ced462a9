"""`egrm export`: a checkpoint's components as folders that other servers load."""

from pathlib import Path
from typing import Annotated

import typer

from transformers_egrm.cli.judging import MODEL_HELP
from transformers_egrm.cli.loading import bars_where_watched, load_model
from transformers_egrm.cli.summary import message_console
from transformers_egrm.data.files import replacing
from transformers_egrm.modeling.errors_egrm import ModelError


EXAMPLES = (
    "egrm export egrm-mini -o ./parts",
    "egrm export ./judge -o ./parts --no-scorer --dtype bfloat16",
)


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    *,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="New or empty folder to write.")],
    scorer: Annotated[bool, typer.Option(help="Write the scorer's encoder too, where there is one.")] = True,
    dtype: Annotated[
        str, typer.Option(help="Number format: auto (the checkpoint's), float32, bfloat16, float16.")
    ] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the Hub.")] = None,
) -> None:
    """Write generator and scorer of a judge as plain folders, which vLLM, SGLang and others load.

    The generator's folder is what a server runs for `--engine`. The judge itself stays where its consensus is taken.
    """
    from transformers_egrm.engines.components import write_components

    folder = Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"-o must name a new or an empty folder, but {folder} holds something.", "Name another one.")
    loaded = load_model(model, device="cpu", dtype=dtype, revision=revision)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as partial, bars_where_watched():
            written = write_components(loaded, partial, scorer=scorer)
    except OSError as error:
        raise ModelError(f"{folder} must be writable, but: {error}.", "Check the path and the free space.") from error
    for name in written:
        message_console().print(f"Wrote {folder / name}.", markup=False, soft_wrap=True)


__all__ = ["EXAMPLES", "export"]
