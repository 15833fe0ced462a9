"""Text of another world: what a judge that was trained from nothing has never been taught to read.

Such a judge gives any text a reward, and a confident one. A sign that costs nothing tells most of these texts apart: how
many of their tokens never came in training. A pretrained generator has seen all of its vocabulary, so its checkpoints
store nothing here and never warn.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors_egrm import ConfigError, UnfamiliarTextWarning, is_finite, need
from .judge_values_egrm import JudgeInputs


SMALLEST_SHARE = 0.1
"""A limit is never below it: a word more is no other world."""


@dataclass(frozen=True)
class Familiarity:
    """Which tokens a judge was taught, and how many others a text may have before its reward means nothing."""

    token_ids: frozenset[int]
    """Tokens that came in training."""
    most_unknown: float
    """Largest share of other tokens, in [0, 1), that a text of its world has."""

    @classmethod
    def fit(cls, training: Iterable[Sequence[int]], calibration: Iterable[Sequence[int]]) -> "Familiarity":
        """What training texts teach, with the limit that calibration texts ask for: twice the largest share in one of them.

        Args:
            training: Token ids of each text, conversations as `EncodedItem.judged_ids` has them.
            calibration: The same of other texts of this world.
        """
        taught = cls(frozenset(token for ids in training for token in ids), 0.0)
        largest = max(map(taught.unknown_share, calibration))
        return cls(taught.token_ids, min(max(SMALLEST_SHARE, 2 * largest), 0.99))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Familiarity":
        """What `to_dict` wrote.

        Raises:
            ConfigError: It is something else.
        """
        if set(values) != {"token_ids", "most_unknown"}:
            raise ConfigError(
                f"`familiar` has the keys token_ids and most_unknown, got {sorted(values)}.",
                "Write what `Familiarity.to_dict` does.",
            )
        ids, most = values["token_ids"], values["most_unknown"]
        listed = isinstance(ids, list | tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
        need(listed and len(ids) > 0, "token_ids", ids, "a list of token ids")
        need(is_finite(most) and 0 <= most < 1, "most_unknown", most, "a share in [0, 1)")
        return cls(frozenset(ids), most)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"token_ids": sorted(self.token_ids), "most_unknown": self.most_unknown}

    def unknown_share(self, ids: Sequence[int]) -> float:
        """Share of a text's tokens that never came in training, in [0, 1]."""
        return sum(token not in self.token_ids for token in ids) / len(ids) if ids else 0.0

    def knows(self, ids: Sequence[int]) -> bool:
        """Whether a text reads like those of the judge's world."""
        return self.unknown_share(ids) <= self.most_unknown


def familiarity_of(config: Any) -> Familiarity | None:
    """What a checkpoint stores; None where it stores nothing: it knows any text.

    Args:
        config: An `EGRMConfig`, of whatever version.
    """
    values = getattr(config, "familiar", None)
    return None if values is None else Familiarity.from_dict(values)


def warn_of_unfamiliar_text(config: Any, familiarity: Familiarity) -> None:
    """Say that rewards are given for texts that the judge cannot read.

    Args:
        config: The judge's, which says where it came from.
        familiarity: What it knows.
    """
    name = str(getattr(config, "name_or_path", "") or "").rstrip("/").rpartition("/")[2] or "this judge"
    warnings.warn(
        f"A text is unlike anything that {name} was trained on: more than {100 * familiarity.most_unknown:.0f} % of its "
        f"tokens are new to {name}. Rewards for such texts mean nothing, however sure they look. Judge them with a model "
        "that was trained on text of their kind.",
        UnfamiliarTextWarning,
        stacklevel=3,
    )


def look_at_inputs(config: Any, inputs: JudgeInputs) -> None:
    """Warn, once, where items of a batch are unfamiliar.

    Args:
        config: The judge's.
        inputs: R prompts of B items.
    """
    familiarity = familiarity_of(config)
    if familiarity is None:
        return
    ids, masks = inputs.input_ids.cpu(), inputs.attention_mask.cpu().bool()
    for item in range(inputs.num_items):
        row = int((inputs.item_index == item).nonzero()[0])
        turn = len(inputs.task.judge_turn_ids) if inputs.turn_tokens is None else inputs.turn_tokens[item]
        text = ids[row][masks[row]].tolist()
        if not familiarity.knows(text[: len(text) - turn]):
            warn_of_unfamiliar_text(config, familiarity)
            return


__all__ = ["Familiarity", "familiarity_of", "look_at_inputs", "warn_of_unfamiliar_text"]
