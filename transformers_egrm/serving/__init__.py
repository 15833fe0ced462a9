"""A judge behind HTTP: one thread that judges, and the wire formats that trainers speak. The extra `serve` brings FastAPI."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers_egrm.extras import import_extra
from transformers_egrm.serving.options import ServeOptions


if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(
    model: Any, options: ServeOptions | None = None, *, token: str | None = None, name: str = "egrm",
    judging: Mapping[str, Any] | None = None,
) -> "FastAPI":  # fmt: skip
    """The server's application, to be run by any ASGI server.

    Args:
        model: An `EGRMRewardModel`.
        options: What it accepts.
        token: What clients must send as a bearer token, or as the password of basic authentication; None: nothing.
        name: What answers call the model.
        judging: Fields of `JudgeOptions` that differ from the checkpoint's.

    Raises:
        ConfigError: An option or the policy file is wrong.
        MissingExtraError: The extra `serve` is not installed.

    Example:
        ```python
        app = create_app(load_mini())
        ```
    """
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        import_extra(library, "serve")
    from transformers_egrm.serving.app import build_app

    return build_app(model, options or ServeOptions(), token=token, name=name, judging=judging)


__all__ = ["ServeOptions", "create_app"]
