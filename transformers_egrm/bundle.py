"""The trained judge that comes inside the package, so that a first reward needs no download.

It was trained in the synthetic world of `transformers_egrm.data.synthetic` and judges that world: a working example of
everything this library does, not a general judge.
"""

from pathlib import Path
from typing import Any

from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


MINI_NAME = "egrm-mini"
MINI_FOLDER = Path(__file__).parent / "checkpoints" / MINI_NAME


def load_mini(**options: Any) -> EGRMRewardModel:
    """The bundled judge, in evaluation mode.

    Args:
        **options: Of `EGRMRewardModel.from_pretrained`, such as `dtype` or `device_map`.

    Example:
        ```python
        judge = RewardJudge(load_mini())
        judge([{"prompt": "Mia has 7 books, gets 5. How many books now?", "response": "It is 12."}])
        ```
    """
    return EGRMRewardModel.from_pretrained(MINI_FOLDER, **options)


def folder_of(model: str) -> str:
    """A model as the command line takes it: the bundled one by its name, unless a folder here has that name."""
    return str(MINI_FOLDER) if model == MINI_NAME and not Path(model).exists() else model


__all__ = ["MINI_FOLDER", "MINI_NAME", "folder_of", "load_mini"]
