"""`egrm serve`: a judge behind HTTP."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from transformers_egrm.bundle import folder_of
from transformers_egrm.cli.judging import MODEL_HELP, rubric_text
from transformers_egrm.cli.loading import load_model
from transformers_egrm.cli.options import with_judge_options, with_options
from transformers_egrm.cli.paths import check_paths
from transformers_egrm.serving import ServeOptions, create_app


EXAMPLES = (
    "egrm serve egrm-mini",
    "EGRM_TOKEN=... egrm serve ./judge --host 0.0.0.0 --fallback 0 --policy policy.json",
)


@with_judge_options(skip=("timeout_s", "strict"))
@with_options(ServeOptions, "serving", "Server")
def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    *,
    rubric: Annotated[
        str | None, typer.Option(metavar="TEXT|@FILE", help="How to judge; default: the checkpoint's.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device of the model: auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="Number format: auto (the checkpoint's), float32, bfloat16, float16.")
    ] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the Hub.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="URL", help="Server that runs the generator.")] = None,
    serving: ServeOptions,
    judging: dict[str, Any],
) -> None:
    """Serve a judge over HTTP.

    It answers in its own form (/v1/reward, /v1/rewards/group, /v1/jobs) and in those of OpenRLHF, vLLM, SGLang and
    OpenAI's chat. It listens on 127.0.0.1; any other address needs a token. TLS is left to a proxy. SIGTERM ends it when
    the requests that it has accepted are answered.
    """
    token = serving.token()
    if serving.cache is not None:
        check_paths({"the model": folder_of(model)}, {"--cache": serving.cache})
    text = rubric_text(rubric)
    loaded = load_model(model, device=device, dtype=dtype, revision=revision, engine=engine)
    if text is not None:
        loaded.processor.rubric = text
        loaded.processor.task()  # a rubric that cannot be used is refused now
    app = create_app(loaded, serving, token=token, name=Path(model).name, judging=judging)
    from transformers_egrm.serving.logs import log_json
    from transformers_egrm.serving.run import serve as run

    log_json()
    run(app, serving.host, serving.port, serving.drain_s, lambda address: print(address, file=sys.stdout, flush=True))  # noqa: T201


__all__ = ["EXAMPLES", "serve"]
