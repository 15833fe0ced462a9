"""The assessor's training: what a generator shows of items, labels made from that, the fit, and thresholds with a promise.

A pseudo-label says how much the generator may be trusted with an item. It is a weighted mean of signals, each in [0, 1].
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transformers_egrm.calibration.aims import Aim
from transformers_egrm.calibration.calibrators import METHODS, fit_best
from transformers_egrm.calibration.records import CalibrationItem, Labelled, digest_of
from transformers_egrm.calibration.thresholds import Choice, choose
from transformers_egrm.evaluation.outcomes import LabelledItem
from transformers_egrm.modeling.errors_egrm import ConfigError, UnsupportedModelError
from transformers_egrm.modeling.judge_assessor_egrm import AssessorSettings, EGRMAssessor, Opinion
from transformers_egrm.modeling.judge_certificate_egrm import task_digest
from transformers_egrm.modeling.judge_options_egrm import NEVER_SHORT
from transformers_egrm.modeling.judge_plan_egrm import JudgePlan
from transformers_egrm.modeling.judge_probes_egrm import build_trie, exact_probs, over_ladder
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


SIGNALS = ("right", "consensus", "exits", "attention")
"""What a pseudo-label is made from. `right`: probability of the true verdict. `consensus`: agreement of the probes, exactly.
`exits`: share of the earlier layers whose verdict is the last one's. `attention`: one minus the entropy of the last token's
attention, as a share of the most it can be."""
WIDTHS = {"state": 64, "encoder": 24}
"""Of `egrm-mini`: about 9,000 and 32,000 parameters."""
_PIECE = 32  # texts that an encoder in training reads together


# -- what the generator shows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """N items with what is known of them before anything is decoded."""

    questions: tuple[str, ...]
    """[N] the question of each."""
    token_ids: tuple[tuple[int, ...], ...]
    """[N] judge prompts without the judge's own turn."""
    texts: tuple[str, ...]
    """[N] the same as text."""
    truth: Tensor
    """[N] int64, true verdicts."""
    difficulty: Tensor
    """[N] int64, as the world says."""
    states: Tensor
    """[N, H] float32, the generator's final hidden state after the short prompt."""
    probs: Tensor
    """[N, C] float64, exact distribution of the short verdict, averaged over the ladder."""
    signals: dict[str, Tensor] = field(default_factory=dict)
    """[N] float32 in [0, 1] by name, see `SIGNALS`; only what labels are made from."""

    @property
    def consensus(self) -> NDArray[np.float64]:
        """[N] exact consensus."""
        return self.probs.amax(-1).numpy()

    @property
    def right(self) -> NDArray[np.bool_]:
        """[N] whether the short path is right."""
        return (self.probs.argmax(-1) == self.truth).numpy()


@torch.no_grad()
def observe(
    model: EGRMRewardModel,
    items: Sequence[LabelledItem],
    batch_size: int = 64,
    *,
    signals: bool = False,
    **options: Any,
) -> Observed:
    """Run the prompts of items, and nothing after them.

    Args:
        model: The judge.
        items: N labelled items with one prompt each.
        batch_size: Prompts run together.
        signals: Whether to collect what pseudo-labels are made from: one more run of each prompt.
        **options: Fields of `JudgeOptions`, such as the ladder of exact consensus.

    Raises:
        ConfigError: The judge's verdicts cannot be listed, or an item has two prompts.
    """
    task, resolved = model.task, model.config.judge_options(**{"consensus": "exact", **options})
    if not task.space.listed or any(len(item.item.prompts) > 1 for item in items):
        raise ConfigError("An assessor is trained on single answers with verdicts that can be listed.",
                          "Train it on a pointwise or a binary judge.")  # fmt: skip
    trie = build_trie(task, resolved, model.engine.device)
    assert trie is not None, "listed"
    order = sorted(range(len(items)), key=lambda index: len(items[index].item.prompts[0]))
    rows: list[dict[str, Tensor]] = [{} for _ in items]
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        inputs = model.processor.collate([items[index].item for index in batch], groups=batch).to(model.engine.device)
        prompts = model.engine.start(inputs, task.short_suffix_ids)
        plan = JudgePlan.of([resolved] * len(batch), inputs.item_ids.tolist())
        by_rung = exact_probs(prompts, trie, inputs, resolved, plan, [math.inf] * len(batch))
        assert by_rung is not None, "exact"
        found = {"states": prompts.states.float(), "probs": over_ladder(by_rung, plan)}
        if signals:
            found |= _signals(model, [[*items[index].item.prompts[0], *task.short_suffix_ids] for index in batch])
        for place, index in enumerate(batch):
            rows[index] = {name: values[place].cpu() for name, values in found.items()}
    ids = tuple(item.item.judged_ids for item in items)
    truth, probs = torch.tensor([item.truth for item in items]), torch.stack([row["probs"] for row in rows])
    told = {name: torch.stack([row[name] for row in rows]) for name in ("exits", "attention")} if signals else {}
    if signals:
        told |= {"right": probs.gather(-1, truth[:, None])[:, 0].float(), "consensus": probs.amax(-1).float()}
    return Observed(
        tuple(item.question_id for item in items), ids, tuple(model.decode_tokens([list(own) for own in ids])), truth,
        torch.tensor([item.difficulty for item in items]), torch.stack([row["states"] for row in rows]), probs, told,
    )  # fmt: skip


def _signals(model: EGRMRewardModel, prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    # Right padding: a causal model's last token sees none of it.
    generator: Any = model.generator
    body = model.backbone.body
    norm = next((own for name in ("norm", "final_layernorm", "ln_f") if (own := getattr(body, name, None))), None)
    if norm is None:
        raise UnsupportedModelError(f"The last norm of {type(body).__name__} is not where it is expected.",
                                    "Early exits need it. Use a generator of another architecture.")  # fmt: skip
    rows = [torch.tensor(prompt) for prompt in prompts]
    lengths = torch.tensor([len(row) for row in rows])
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(generator.device)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long().to(generator.device)
    before = generator.config._attn_implementation
    generator.set_attn_implementation("eager")
    try:
        shown = body(
            input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True, output_attentions=True
        )
    finally:
        generator.set_attn_implementation(before)
    row, last = torch.arange(len(rows)), lengths - 1
    columns = torch.tensor([first for first, *_ in model.task.verdict_token_ids], device=generator.device)
    layers = [norm(hidden[row, last]) for hidden in shown.hidden_states[1:-1]] + [shown.hidden_states[-1][row, last]]
    said = torch.stack([model.backbone.logits(hidden, columns).argmax(-1) for hidden in layers], -1)  # [N, layers]
    shares = torch.stack([weights[row, :, last].float() for weights in shown.attentions], 1)  # [N, layers, heads, T]
    entropy = (
        -(shares * shares.clamp_min(1e-12).log()).sum(-1) / lengths.clamp_min(2).log().to(shares.device)[:, None, None]
    )
    return {
        "exits": (said[:, :-1] == said[:, -1:]).float().mean(-1),
        "attention": (1 - entropy.mean((1, 2))).clamp(0, 1),
    }


# -- labels and fit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How an assessor is fitted: first on known difficulty, then on pseudo-labels."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"right": 0.5, "consensus": 0.5})
    """Of each signal in a pseudo-label; signals left out have none."""
    known_steps: int = 200
    """Optimiser steps on known difficulty, the easiest items being 1 and the hardest 0."""
    steps: int = 1500
    """Optimiser steps on pseudo-labels."""
    batch_size: int = 256
    """Items of a step."""
    learning_rate: float = 3e-3
    """Peak rate of AdamW; it falls along a cosine."""
    weight_decay: float = 0.01
    """Of AdamW."""
    seed: int = 0
    """Of the first weights and of the order."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.weights) - set(SIGNALS))
        if unknown or not any(weight > 0 for weight in self.weights.values()) or min(self.weights.values()) < 0:
            raise ConfigError(
                f"Weights are numbers >= 0 of {', '.join(SIGNALS)}, one of them above 0; got {self.weights}."
            )


def pseudo_labels(observed: Observed, weights: Mapping[str, float]) -> Tensor:
    """[N] float32 in [0, 1], the weighted mean of signals.

    Args:
        observed: With signals.
        weights: Of each.
    """
    parts = torch.stack([observed.signals[name] * weight for name, weight in weights.items()])
    return parts.sum(0) / sum(weights.values())


def known_labels(observed: Observed) -> Tensor:
    """[N] float32, 1 for the easiest difficulty, 0 for the hardest."""
    values = observed.difficulty.float()
    return 1 - (values - values.min()) / (values.max() - values.min()).clamp_min(1)


def new_assessor(model: EGRMRewardModel, kind: str, *, seed: int = 0, **sizes: Any) -> EGRMAssessor:
    """An untrained assessor for a judge.

    Args:
        model: The judge.
        kind: `state` or `encoder`.
        seed: Of its weights.
        **sizes: More fields of `AssessorSettings`.
    """
    sizes = {"width": WIDTHS.get(kind, 64)} | sizes
    settings = AssessorSettings(
        kind=kind, num_verdicts=model.task.space.num_verdicts, task=task_digest(model.task), **sizes
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EGRMAssessor(settings, model.generator.config.get_text_config().hidden_size)


def fit(assessor: EGRMAssessor, observed: Observed, options: FitOptions) -> None:
    """Train an assessor in place.

    Args:
        assessor: Untrained.
        observed: Training items with signals.
        options: How.
    """
    if assessor.kind == "encoder":
        _measure_texts(assessor, observed)
    draw = torch.Generator().manual_seed(options.seed)
    assessor.train()
    known, fused = known_labels(observed), pseudo_labels(observed, options.weights)
    for targets, steps in ((known, options.known_steps), (fused, options.steps)):
        optimizer = torch.optim.AdamW(assessor.parameters(), options.learning_rate, weight_decay=options.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
        for _ in range(steps):
            batch = torch.randint(len(targets), (options.batch_size,), generator=draw)
            opinion = _opinion(assessor, observed, batch.tolist())
            loss = nn.functional.binary_cross_entropy_with_logits(opinion.logits, targets[batch])
            if opinion.verdict_logits is not None:
                loss = loss + nn.functional.cross_entropy(opinion.verdict_logits, observed.truth[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    assessor.eval()


def _opinion(assessor: EGRMAssessor, observed: Observed, rows: Sequence[int]) -> Opinion:
    if assessor.kind == "state":
        return assessor.read_states(observed.states[list(rows)])
    # In pieces of about one length: padding would cost five times what the texts do.
    order = sorted(range(len(rows)), key=lambda place: len(observed.token_ids[rows[place]]))
    pieces = [order[at : at + _PIECE] for at in range(0, len(order), _PIECE)]
    told = [
        assessor.read_texts([observed.token_ids[rows[p]] for p in own], [observed.texts[rows[p]] for p in own]).logits
        for own in pieces
    ]
    return Opinion(torch.cat(told)[torch.tensor(order).argsort()])


def _measure_texts(assessor: EGRMAssessor, observed: Observed) -> None:
    # How often each token came, and the spread of each hand feature.
    counts = torch.ones(assessor.settings.num_buckets)
    for ids in observed.token_ids:
        counts += torch.bincount(torch.tensor(ids) % len(counts), minlength=len(counts))
    assessor.log_frequency.copy_((counts / counts.sum()).log())
    _, _, features = assessor.collate(observed.token_ids, observed.texts)
    assessor.feature_scale.copy_(torch.stack([features.mean(0), features.std(0).clamp_min(1e-3)]))


def train_assessor(
    model: EGRMRewardModel, training: Sequence[LabelledItem], calibration: Sequence[LabelledItem], kind: str = "state", *,
    options: FitOptions | None = None, batch_size: int = 64, **promised: Any,
) -> dict[str, Choice]:  # fmt: skip
    """Train an assessor for a judge, calibrate it, set its thresholds, and attach it.

    Args:
        model: The judge.
        training: What it learns from.
        calibration: What tells how far it may be trusted, of other questions.
        kind: `state` or `encoder`.
        options: How to fit.
        batch_size: Prompts run together.
        **promised: `risk`, `waste`, `delta` and `seed` of `set_thresholds`.

    Returns:
        What was promised of its thresholds, see `set_thresholds`.
    """
    options = options or FitOptions()
    assessor = new_assessor(model, kind, seed=options.seed)
    fit(assessor, observe(model, training, batch_size, signals=True), options)
    seen = observe(model, calibration, batch_size)
    calibrate(assessor, seen)
    found = set_thresholds(assessor, seen, tau=model.config.judge_options().consensus_threshold, **promised)
    model.attach_assessor(assessor)
    return found


# -- what it says of unseen items -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What an assessor says of N items."""

    sure: NDArray[np.float64]
    """[N] calibrated where it has a table."""
    verdicts: NDArray[np.int64] | None
    """[N] its own; None for an encoder."""
    support: NDArray[np.float64] | None
    """[N] the probability it gives them."""


@torch.no_grad()
def ask(assessor: EGRMAssessor, observed: Observed, batch_size: int = 256) -> Said:
    """The assessor's opinion of items.

    Args:
        assessor: Trained.
        observed: The items.
        batch_size: Items asked about together.
    """
    count = len(observed.questions)
    parts = [
        _opinion(assessor, observed, range(at, min(at + batch_size, count))) for at in range(0, count, batch_size)
    ]
    sure = torch.cat([part.logits for part in parts]).double().sigmoid().tolist()
    own = [part.verdict_logits for part in parts if part.verdict_logits is not None]
    if not own:
        return Said(np.array(assessor.calibrated(sure)), None, None)
    support, verdicts = torch.cat(own).double().softmax(-1).max(-1)
    return Said(np.array(assessor.calibrated(sure)), verdicts.numpy(), support.numpy())


def calibrate(assessor: EGRMAssessor, observed: Observed, methods: Sequence[str] = METHODS) -> None:
    """Give an assessor the table from what it says to how often the short path is right.

    Args:
        assessor: Trained; a table that it has is replaced.
        observed: Calibration items.
        methods: Of calibrators, to choose from by questions that are left out.
    """
    assessor.settings = replace(assessor.settings, calibration=None)
    owner = np.unique(np.array(observed.questions), return_inverse=True)[1]
    table = fit_best(ask(assessor, observed).sure, observed.right, owner, methods)
    assessor.settings = replace(assessor.settings, calibration=table)


def set_thresholds(
    assessor: EGRMAssessor, observed: Observed, *, tau: float, risk: float = 0.02, waste: float = 0.05, delta: float = 0.05,
    seed: int = 0,
) -> dict[str, Choice]:  # fmt: skip
    """Give a calibrated assessor the thresholds that the calibration items allow.

    Each is found by fixed-sequence testing, as tau is. Where nothing can be promised, the assessor does not decide there.

    Args:
        assessor: Calibrated.
        observed: Calibration items.
        tau: The judge's own threshold of exact consensus.
        risk: Of the direct answers at most this share may be wrong.
        waste: Of the items that think at once, at most this share would have taken the short path.
        delta: Chance that either promise is wrong; each spends half.
        seed: Of the split between choosing and testing.

    Returns:
        `direct`, where it has a verdict, and `think`.
    """
    said, found = ask(assessor, observed), {}
    if said.verdicts is not None and said.support is not None:
        held = np.where(said.support >= assessor.settings.direct_floor, said.sure, 0.0)
        answered = _items(observed, held, said.verdicts == observed.truth.numpy())
        found["direct"] = choose(answered, Aim("risk", risk), delta, seed=seed, spend=0.5)
    unsure = _items(observed, 1 - said.sure, observed.consensus < tau)
    found["think"] = choose(unsure, Aim("risk", waste), delta, seed=seed, spend=0.5)
    direct = found["direct"].threshold if "direct" in found else NEVER_SHORT
    think = found["think"].threshold
    assessor.settings = replace(
        assessor.settings, direct_above=direct, think_below=0.0 if think > 1 else max(0.0, 1 - think)
    )
    return found


def _items(observed: Observed, confidence: NDArray[np.float64], holds: NDArray[np.bool_]) -> Labelled:
    # A threshold's own words for it: what is taken where one is confident, and whether that holds.
    return Labelled([
        CalibrationItem(
            id=str(row), question_id=question, text_digest=digest_of(question), verdict=None, short_right=bool(holds[row]),
            long_right=True, consensus=float(confidence[row]), short_flops=0.0, long_flops=0.0,
        )
        for row, question in enumerate(observed.questions)
    ])  # fmt: skip


__all__ = [
    "SIGNALS",
    "WIDTHS",
    "FitOptions",
    "Observed",
    "Said",
    "ask",
    "calibrate",
    "fit",
    "known_labels",
    "new_assessor",
    "observe",
    "pseudo_labels",
    "set_thresholds",
    "train_assessor",
]
