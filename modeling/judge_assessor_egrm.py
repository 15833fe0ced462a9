"""The assessor: how likely the short path is right, said before any verdict is drawn.

There are two kinds. `state` is a head on the generator's hidden state after the prompt. It costs almost nothing, and it
also names a verdict, with a probability of its own. `encoder` reads the question before the generator does, with a few
small layers and hand features. It has no verdict, so it can only send an item to its probes or to its chains.

Both say one number: the probability that the short path is right. The number is calibrated by a stored table.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from .engine_flops_egrm import CostModel
from .errors_egrm import ConfigError, is_count, is_finite, need, need_one_of
from .judge_certificate_egrm import task_digest
from .judge_options_egrm import NEVER_SHORT
from .judge_precision_egrm import Float32Module
from .prompt_task_egrm import JudgeTask
from .verdict_calibration_egrm import is_table, read_table


KINDS = ("state", "encoder")
MOST_TOKENS = 256
"""An encoder reads that many tokens of a prompt: its beginning and its end."""
AMBIGUOUS = re.compile(
    r"\b(?:maybe|perhaps|probably|possibly|about|around|some|any|might|could|or|whatever)\b|\.\.\.", re.I
)
QUESTIONS = (r"\bhow (?:many|much|long|old|far)\b", r"\b(?:which|what|who|whom|when|where)\b", r"\b(?:why|how)\b",
             r"\b(?:is|are|does|do|did|was|were|can|will)\b")  # fmt: skip
_QUESTIONS = tuple(re.compile(pattern, re.I) for pattern in QUESTIONS)
FEATURES = (
    "length", "digits", "numbers", "entities", "nesting", "clauses", "marks", "asks_amount", "asks_which", "asks_why",
    "asks_yes_no", "ambiguity", "frequency", "rarest",
)  # fmt: skip
"""What hand features say of a text: its length, digits and entities, nesting, question type, ambiguity, familiarity."""


@dataclass(frozen=True, kw_only=True)
class AssessorSettings:
    """Sizes of an assessor, what it is bound to, and from where it decides. `EGRMConfig.assessor` holds them as data."""

    kind: str = "state"
    """`state` or `encoder`."""
    num_verdicts: int
    """C of the verdict space."""
    task: str
    """Digest of the judging task it was trained in. Of another one it says nothing."""
    width: int = 64
    """Hidden size."""
    num_layers: int = 3
    """Layers of an encoder."""
    num_heads: int = 4
    """Attention heads of each layer."""
    num_buckets: int = 640
    """Entries of an encoder's embedding. Token ids beyond them share entries."""
    calibration: Mapping[str, Any] | None = None
    """Table from what it says to how often the short path is right. None: it is taken at its word."""
    think_below: float = 0.0
    """Below this probability an item thinks at once. 0: never."""
    direct_above: float = NEVER_SHORT
    """From this probability on the assessor's own verdict stands. 2: never."""
    direct_floor: float = 0.9
    """Least probability that the assessor's own verdict must have for that. Below it the probes are asked."""

    def __post_init__(self) -> None:
        need_one_of(self, kind=KINDS)
        for name in ("num_verdicts", "width", "num_layers", "num_heads", "num_buckets"):
            need(is_count(getattr(self, name)), name, getattr(self, name), "an integer >= 1")
        need(self.kind == "state" or self.width % self.num_heads == 0, "width", self.width, "a multiple of num_heads")
        need(isinstance(self.task, str), "task", self.task, "a task's digest")
        need(self.calibration is None or is_table(self.calibration), "calibration", self.calibration,
             "a table with `method`, and rising rows `x` and `y` in [0, 1], or None")  # fmt: skip
        for name in ("think_below", "direct_above", "direct_floor"):
            value = getattr(self, name)
            fits = is_finite(value) and (0 <= value <= 1 or (name == "direct_above" and value == NEVER_SHORT))
            need(fits, name, value, "a probability in [0, 1]")
        need(self.kind == "state" or not self.answers, "direct_above", self.direct_above,
             f"{NEVER_SHORT:g} (never): an encoder has no verdict of its own")  # fmt: skip

    @property
    def answers(self) -> bool:
        """Whether its own verdict ever stands."""
        return self.direct_above <= 1

    def decides_on(self, path: str) -> bool:
        """Whether it ever changes what an item takes.

        Args:
            path: The path that a call asks for; one that is forced short never thinks.
        """
        return path != "long" and (self.answers or (path == "auto" and self.think_below > 0))

    @classmethod
    def from_dict(cls, values: Any) -> "AssessorSettings":
        """The settings that `to_dict` wrote.

        Raises:
            ConfigError: A key is missing or unknown, or a value out of range.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or not {"num_verdicts", "task"} <= set(values) <= known:
            raise ConfigError(f"`assessor` must hold num_verdicts, task and others of {', '.join(sorted(known))}, got "
                              f"{values!r:.200}.", "Make one with `egrm train assessor`.")  # fmt: skip
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Opinion:
    """What an assessor says of R prompts."""

    logits: Tensor
    """[R] float32, log-odds of a right short verdict, not calibrated."""
    verdict_logits: Tensor | None = None
    """[R, C] float32, its own verdict, in the order the prompt shows; None where it has none."""


class EGRMAssessor(Float32Module):
    """Says how likely the short path is right.

    Args:
        settings: Kind and sizes.
        hidden_size: H of the generator, which a head on states reads.
    """

    log_frequency: Tensor
    feature_scale: Tensor

    def __init__(self, settings: AssessorSettings, hidden_size: int) -> None:
        super().__init__()
        self.settings, width = settings, settings.width
        wide: Any = {"dtype": torch.float32}
        if settings.kind == "state":
            self.norm = nn.LayerNorm(hidden_size, **wide)
            self.hidden = nn.Linear(hidden_size, width, **wide)
            self.verdict_head = nn.Linear(width, settings.num_verdicts, **wide)
        else:
            self.embedding = nn.Embedding(settings.num_buckets, width, **wide)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    width, settings.num_heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True, **wide
                )
                for _ in range(settings.num_layers)
            )
            self.features = nn.Linear(len(FEATURES), width, **wide)
            self.norm = nn.LayerNorm(width, **wide)
            self.hidden = nn.Linear(2 * width, width, **wide)
            # Of training: log-frequencies of tokens, and mean and spread of the hand features.
            self.register_buffer("log_frequency", torch.full((settings.num_buckets,), -math.log(settings.num_buckets)))
            self.register_buffer("feature_scale", torch.stack([torch.zeros(len(FEATURES)), torch.ones(len(FEATURES))]))
        self.sure_head = nn.Linear(width, 1, **wide)

    @property
    def kind(self) -> str:
        """`state` or `encoder`."""
        return self.settings.kind

    def read_states(self, states: Tensor) -> Opinion:
        """The opinion of a head on states.

        Args:
            states: [R, H] the generator's final hidden state after each prompt, any floating dtype, any device.
        """
        with torch.autocast(states.device.type, enabled=False):
            states = states.to(self.norm.weight.device, torch.float32)
            hidden = nn.functional.gelu(self.hidden(self.norm(states)))
            return Opinion(self.sure_head(hidden)[:, 0], self.verdict_head(hidden))

    def read_texts(self, token_ids: Sequence[Sequence[int]], texts: Sequence[str]) -> Opinion:
        """The opinion of an encoder.

        Args:
            token_ids: R prompts without the judge's own turn, in the generator's tokens.
            texts: The same as text.
        """
        return self.encode(*self.collate(token_ids, texts))

    def collate(self, token_ids: Sequence[Sequence[int]], texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """What `encode` takes of R prompts: buckets [R, T], mask [R, T] bool and features [R, F], on its device."""
        rows = [_both_ends(ids) for ids in token_ids]
        buckets = [torch.tensor([int(token) % self.settings.num_buckets for token in row] or [0]) for row in rows]
        padded = nn.utils.rnn.pad_sequence(buckets, batch_first=True)
        mask = torch.arange(padded.shape[1]) < torch.tensor([len(row) for row in buckets])[:, None]
        known = self.log_frequency.cpu()
        found = [
            [*text_features(text, len(ids)), float(known[own].mean()), float(known[own].min())]
            for text, ids, own in zip(texts, token_ids, buckets, strict=True)
        ]
        device = self.norm.weight.device
        return padded.to(device), mask.to(device), torch.tensor(found, dtype=torch.float32, device=device)

    def encode(self, buckets: Tensor, mask: Tensor, features: Tensor) -> Opinion:
        """The opinion of an encoder of tokens that are buckets already; training and judging both end here.

        Args:
            buckets: [R, T] int64, right-padded.
            mask: [R, T] bool, True on tokens.
            features: [R, F] float32, see `FEATURES`.
        """
        with torch.autocast(features.device.type, enabled=False):
            hidden = self.embedding(buckets) + _positions(buckets.shape[1], self.settings.width, features.device)
            for layer in self.layers:
                hidden = layer(hidden, src_key_padding_mask=~mask)
            hidden = torch.where(mask[..., None], self.norm(hidden), 0.0).sum(1) / mask.sum(1, keepdim=True)
            told = self.features((features - self.feature_scale[0]) / self.feature_scale[1])
            return Opinion(self.sure_head(nn.functional.gelu(self.hidden(torch.cat([hidden, told], -1))))[:, 0])

    def flops(self, num_tokens: int) -> float:
        """Operations of one opinion; hand features are not counted.

        Args:
            num_tokens: Of the prompt; a head on states reads one state, however long it is.
        """
        if self.kind == "state":
            return 2.0 * sum(weight.numel() for weight in self.parameters())
        layers = sum(weight.numel() for weight in self.layers.parameters())
        cost = CostModel(layers, 0, 1, self.settings.width, (None,) * len(self.layers), causal=False)
        after = sum(
            weight.numel() for part in (self.features, self.hidden, self.sure_head) for weight in part.parameters()
        )
        return cost.run(min(num_tokens, MOST_TOKENS)) + 2.0 * after

    def knows(self, task: JudgeTask) -> bool:
        """Whether it was trained in this task: of another rubric or space, and of open answers, it says nothing."""
        return task.space.listed and task_digest(task) == self.settings.task

    def calibrated(self, sure: Sequence[float]) -> list[float]:
        """What its own probabilities come to by its table; a number that is not finite stays.

        Args:
            sure: Values in [0, 1].
        """
        table = self.settings.calibration
        return [read_table(table, value) if table is not None and is_finite(value) else value for value in sure]


def assessor_of(config: Any) -> EGRMAssessor | None:
    """The assessor that a checkpoint's configuration describes, with fresh weights; None without one.

    Args:
        config: An `EGRMConfig` with a generator.
    """
    if config.assessor is None:
        return None
    hidden_size = config.get_text_config().get_text_config().hidden_size
    return EGRMAssessor(AssessorSettings.from_dict(config.assessor), hidden_size)


def text_features(text: str, num_tokens: int) -> list[float]:
    """The hand features of one text but for the last two of `FEATURES`, which tokens tell.

    Args:
        text: The judged conversation.
        num_tokens: Its length.
    """
    words = re.findall(r"\w+", text)
    depth, deepest = 0, 0
    for mark in re.findall(r"[()\[\]{}]", text):
        depth = depth + 1 if mark in "([{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    numbers = re.findall(r"\d+", text)
    capitals = re.findall(r"(?<=[a-z,] )[A-Z]\w*", text)  # a name stands inside a sentence
    return [
        math.log1p(num_tokens),
        sum(map(len, numbers)) / max(1, len(text)),
        math.log1p(len(numbers)),
        math.log1p(len(capitals)),
        float(deepest),
        math.log1p(len(re.findall(r"[,;:\n]", text))) + len(re.findall(r"\b[a-z]\) ", text)),
        float(text.count("?")),
        *(float(len(pattern.findall(text))) for pattern in _QUESTIONS),
        len(AMBIGUOUS.findall(text)) / max(1, len(words)) * 10,
    ]


def _both_ends(ids: Sequence[int]) -> Sequence[int]:
    half = MOST_TOKENS // 2
    return ids if len(ids) <= MOST_TOKENS else [*ids[:half], *ids[-half:]]


def _positions(length: int, width: int, device: torch.device) -> Tensor:
    rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(1000.0) / width))
    angles = torch.arange(length, device=device)[:, None] * rate
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


__all__ = [
    "FEATURES",
    "KINDS",
    "MOST_TOKENS",
    "AssessorSettings",
    "EGRMAssessor",
    "Opinion",
    "assessor_of",
    "text_features",
]
