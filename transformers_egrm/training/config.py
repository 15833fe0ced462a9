"""What `egrm train` reads from one YAML file: every key is known, every value checked, every number has a default."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from transformers_egrm.modeling.configuration_egrm import POOLINGS
from transformers_egrm.modeling.errors_egrm import ConfigError


@dataclass(frozen=True)
class Schedule:
    """A value over the course of training: linear between points, constant before the first and after the last."""

    points: tuple[tuple[float, float], ...]
    """(progress in [0, 1], value) in ascending progress."""

    def at(self, progress: float) -> float:
        """The value at a progress in [0, 1]."""
        for (start, low), (end, high) in pairwise(self.points):
            if start <= progress < end:
                return low + (high - low) * (progress - start) / (end - start)
        return self.points[0][1] if progress < self.points[0][0] else self.points[-1][1]

    @classmethod
    def read(cls, value: Any, where: str) -> "Schedule":
        """From a number, or a list of `[progress, value]` pairs.

        Args:
            value: What the YAML holds.
            where: Its key, for the message.

        Raises:
            ConfigError: It is neither, progress does not ascend from 0 to 1, or a value is outside [0, 1].
        """
        rows = [[0.0, value]] if _is_number(value) else value
        if not isinstance(rows, list | tuple) or not rows or not all(
            isinstance(row, list | tuple) and len(row) == 2 and all(map(_is_number, row)) for row in rows
        ):  # fmt: skip
            raise ConfigError(
                f"`{where}` must be a share or a list of [progress, share] pairs, got {value!r}.",
                "For example 0.5, or [[0.0, 0.8], [0.5, 0.5]].",
            )
        points = tuple((float(progress), float(share)) for progress, share in rows)
        if any(not 0 <= number <= 1 for point in points for number in point):
            raise ConfigError(f"`{where}` takes progress and shares in [0, 1], got {value!r}.")
        if any(a >= b for (a, _), (b, _) in pairwise(points)):
            raise ConfigError(f"`{where}` must list its pairs in ascending progress, got {value!r}.")
        return cls(points)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where examples come from."""

    world: str = "transformers_egrm.data.synthetic"
    """Module with `examples(split, seed, **options)`; see the synthetic world for what an example is."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `examples`, such as the mix of difficulties."""
    held_out_options: dict[str, Any] | None = None
    """The same for what is measured on, where that is another mix than what is learnt from; None: `options`."""
    files: dict[str, str] = field(default_factory=dict)
    """JSONL file per split (train, calibration, test) with the same fields, instead of a world."""
    train_examples: int = 60_000
    """Training examples drawn; longer trainings see them again. 1,000 steps of 128 see each about twice."""

    def __post_init__(self) -> None:
        _need(self.train_examples >= 1, "data.train_examples", self.train_examples, "at least 1")
        unknown = sorted(set(self.files) - {"train", "calibration", "test"})
        _need(not unknown, "data.files", unknown, "paths under the keys train, calibration and test")
        _need(not self.files or "train" in self.files, "data.files", sorted(self.files), "a path for `train`")


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """How the checkpoint judges, in training and afterwards."""

    low: int = 0
    """Lowest verdict."""
    high: int = 10
    """Highest verdict."""
    rubric: str | None = None
    """Rubric of every judge prompt; the library's own by default, which is long for a small model."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of the checkpoint's configuration: ladder, tau, number of chains, token budgets, …"""


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The judge's language model: a small Qwen3 from scratch, or an existing one."""

    path: str | None = None
    """Causal LM or E-GRM checkpoint to start from: folder or Hub id. None: from scratch, with the sizes below."""
    vocab_size: int = 1024
    """Entries of the tokenizer, trained on the world's texts."""
    tokenizer_examples: int = 20_000
    """Examples the tokenizer is trained on."""
    hidden_size: int = 128
    """Width. With the defaults about 1.0 M parameters, embeddings tied."""
    intermediate_size: int = 384
    """Width of the feed-forward layers: 3 times the hidden size, as gated layers have three matrices."""
    num_hidden_layers: int = 4
    """Depth."""
    num_attention_heads: int = 4
    """Attention heads of 32 dimensions each."""
    num_key_value_heads: int = 4
    """As many as heads: at this size the cache is no cost."""
    max_position_embeddings: int = 1024
    """Longest prompt with its chain, in tokens."""
    rope_theta: float = 300.0
    """Base of the rotary positions. For texts of a few hundred tokens this is enough, and copying is learnt sooner than
    with the usual 10,000."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "tokenizer_examples", "hidden_size", "intermediate_size", "num_hidden_layers",
                     "num_attention_heads", "num_key_value_heads", "max_position_embeddings"):  # fmt: skip
            _need(getattr(self, name) >= 1, f"generator.{name}", getattr(self, name), "at least 1")
        _need(self.rope_theta > 1, "generator.rope_theta", self.rope_theta, "above 1")
        _need(self.hidden_size % self.num_attention_heads == 0, "generator.hidden_size", self.hidden_size,
              f"a multiple of num_attention_heads ({self.num_attention_heads})")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """A low-rank adapter, merged when its stage ends."""

    rank: int = 16
    """Rank; the usual choice for instruction tuning."""
    alpha: int = 32
    """Scale, twice the rank."""
    dropout: float = 0.0
    """Dropout on the adapter's input."""
    target_modules: str | list[str] = "all-linear"
    """Layers that get one, as PEFT names them; never the LM head."""

    def __post_init__(self) -> None:
        _need(self.rank >= 1, "lora.rank", self.rank, "at least 1")
        _need(0 <= self.dropout < 1, "lora.dropout", self.dropout, "a share in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class SFTStageConfig:
    """Routed supervised fine-tuning: a bootstrap on both modes, then rounds on the model's own split."""

    bootstrap_steps: int = 1000
    """Optimiser steps on every example in both modes."""
    rounds: int = 1
    """How often the model labels the training set by its consensus and trains on the split."""
    round_steps: int = 300
    """Optimiser steps of each round."""
    batch_size: int = 128
    """Sequences of one optimiser step, over all processes."""
    micro_batch_size: int | None = None
    """Sequences run at once on one device; None: all of them."""
    learning_rate: float = 2e-3
    """Peak of the bootstrap, for a million parameters from scratch; use 2e-5 for a pretrained model."""
    round_learning_rate: float = 5e-4
    """Peak of each round: a quarter, so that a round refines and does not relearn."""
    warmup_share: float = 0.05
    """Share of the steps over which the rate rises; it then falls along a cosine."""
    weight_decay: float = 0.01
    """Of AdamW."""
    optimizer: str = "adamw"
    """`adamw`, or `muon`: Muon for the layers' matrices, AdamW for the rest. A small model from scratch learns with it in
    a fraction of the steps; a pretrained one is better left to AdamW."""
    matrix_learning_rate: float = 5e-3
    """Muon's peak in the bootstrap; in a round it shrinks as the other rate does."""
    adam_beta2: float = 0.98
    """Shorter memory than 0.999, for runs of about a thousand steps."""
    max_grad_norm: float = 1.0
    """Clips gradients."""
    precision: str = "float32"
    """`float32`, or `bfloat16` for autocast on an accelerator."""
    verdict_weight: float = 4.0
    """Loss weight of the verdict's tokens; all others have 1."""
    answer_weight: float = 0.0
    """Loss weight of a judged response's tokens where it deserves full marks; 0 learns completions only. A judge from
    scratch that learns to answer, too, learns to see at once whether an answer is right: with right answers as half of its
    items, short verdicts of one-step sums left chance; without any they did not. A pretrained one can answer already."""
    short_weight: float = 1.0
    """Loss weight of short-mode items relative to long ones."""
    balance: str = "items"
    """`items`: each sequence counts the same. `tokens`: each token does, so that short verdicts hardly count."""
    short_share: Schedule = Schedule(((0.0, 0.5),))
    """Share of short-mode items during the bootstrap."""
    round_short_share: Schedule | None = None
    """Share of short-mode items during a round; None: as the split has it."""
    short_easy_share: Schedule | None = None
    """Share of easy examples among short-mode items; None: as the data has it."""
    long_easy_share: Schedule | None = None
    """Share of easy examples among long-mode items; None: as the data has it."""
    easy_difficulty: int = 1
    """Up to this difficulty an example is easy."""
    sort_steps: int = 32
    """So many steps' items are sorted by length together, so that a batch holds equal lengths."""
    logging_steps: int = 20
    """Steps between two lines of the metrics."""
    save_steps: int = 200
    """Steps between two checkpoints that a killed run resumes from; a multiple of logging_steps."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all weights."""

    def __post_init__(self) -> None:
        for name in ("bootstrap_steps", "rounds", "round_steps"):
            _need(getattr(self, name) >= 0, f"sft.{name}", getattr(self, name), "at least 0")
        for name in ("batch_size", "sort_steps", "logging_steps", "save_steps"):
            _need(getattr(self, name) >= 1, f"sft.{name}", getattr(self, name), "at least 1")
        for name in ("learning_rate", "round_learning_rate", "matrix_learning_rate", "verdict_weight", "short_weight",
                     "max_grad_norm"):  # fmt: skip
            _need(getattr(self, name) > 0, f"sft.{name}", getattr(self, name), "above 0")
        _need(0 <= self.warmup_share < 1, "sft.warmup_share", self.warmup_share, "a share in [0, 1)")
        _need(self.weight_decay >= 0, "sft.weight_decay", self.weight_decay, "at least 0")
        _need(0 < self.adam_beta2 < 1, "sft.adam_beta2", self.adam_beta2, "a value in (0, 1)")
        _need(self.answer_weight >= 0, "sft.answer_weight", self.answer_weight, "at least 0")
        _need(self.optimizer in ("adamw", "muon"), "sft.optimizer", self.optimizer, "adamw or muon")
        _need(self.balance in ("items", "tokens"), "sft.balance", self.balance, "items or tokens")
        _check_saving("sft", self.save_steps, self.logging_steps)
        _check_batch("sft", self.batch_size, self.micro_batch_size, self.precision)


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """How the model's own consensus splits the training set."""

    examples: int | None = None
    """So many training examples are labelled, the others take no part in a round; None: all."""
    threshold: float | None = None
    """Consensus from which an example goes to the short set; None: the judge's tau."""
    require_correct: bool = True
    """Whether the short set takes only verdicts that agree with the truth, too. Confident errors then go on to reason."""
    keep_both: float = 0.25
    """Share of examples that stay in both sets, whatever the consensus. Short mode would otherwise never see an example
    it fails on, and become certain of everything."""
    batch_size: int = 256
    """Examples probed at once."""

    def __post_init__(self) -> None:
        _need(self.examples is None or self.examples >= 1, "routing.examples", self.examples, "at least 1, or none")
        _need(self.threshold is None or 0 <= self.threshold <= 1, "routing.threshold", self.threshold,
              "a share in [0, 1], or none")  # fmt: skip
        _need(0 <= self.keep_both <= 1, "routing.keep_both", self.keep_both, "a share in [0, 1]")
        _need(self.batch_size >= 1, "routing.batch_size", self.batch_size, "at least 1")


@dataclass(frozen=True, kw_only=True)
class ScorerStageConfig:
    """The scorer: which candidates it learns from, and how."""

    kind: str = "generator_state"
    """`generator_state`: a head on the generator's own states, for next to nothing. `encoder`: reads prompt and chain."""
    pooling: str = "mean"
    """Which states kind `generator_state` reads: `mean` over a candidate's tokens, or the one behind its `last`. Behind an end
    token, where a generator was taught to write nothing, that one says little."""
    encoder: str | None = None
    """Encoder to start from: folder or Hub id. None: a small BERT from scratch, with the sizes below."""
    hidden_size: int = 32
    """Width of that BERT. It reads a prompt with each of nine candidates: at 25 thousand parameters beside a generator of a
    million it costs about a tenth of the long path."""
    intermediate_size: int = 128
    """Width of its feed-forward layers."""
    num_hidden_layers: int = 2
    """Its depth."""
    num_attention_heads: int = 2
    """Its attention heads."""
    max_tokens: int = 256
    """Most tokens of prompt and chain; longer prompts lose their middle."""
    examples: int = 4000
    """Training examples that candidates are sampled for, behind those that the generator was trained on."""
    data_options: dict[str, Any] | None = None
    """Keyword arguments of `examples` for them, such as a harder mix, whose chains differ more often; drawn
    under a seed of their own. None: the data's own."""
    threshold: float | None = None
    """Consensus from which an example gives no candidates; None: the judge's tau, so that the scorer learns from what it will
    be asked. With 1 only unanimous probes are passed over: more groups, easier ones among them."""
    files: dict[str, str] = field(default_factory=dict)
    """JSONL files (train, test) of candidates with a given quality, instead of sampled ones: question_id, prompt, text and
    quality in [0, 1]. For kind `encoder`."""
    quality: str = "exact"
    """Of a sampled candidate. `exact`: 1 where its verdict is the truth, else 0. `graded`: 1 minus their distance."""
    epochs: int = 8
    """How often each group of candidates is seen."""
    groups_per_step: int = 32
    """Groups of one optimiser step, over all processes: about 300 candidates."""
    max_pairs: int = 16
    """Most pairs of better and worse candidates of one group, the rest is left out at random."""
    learning_rate: float = 1e-3
    """Peak rate; use 2e-5 for a pretrained encoder."""
    warmup_share: float = 0.05
    """Share of the steps over which the rate rises; it then falls along a cosine."""
    weight_decay: float = 0.01
    """Of AdamW."""
    regression_weight: float = 0.5
    """Weight of Huber beside the hinge."""
    huber_delta: float = 0.1
    """Where Huber turns linear, in score units."""
    hinge_margin: float = 0.1
    """How far apart a pair should be, in score units."""
    logging_steps: int = 20
    """Steps between two lines of the metrics."""
    save_steps: int = 200
    """Steps between two checkpoints; a multiple of logging_steps."""

    def __post_init__(self) -> None:
        _need(self.kind in ("generator_state", "encoder"), "scorer.kind", self.kind, "generator_state or encoder")
        _need(self.pooling in POOLINGS, "scorer.pooling", self.pooling, " or ".join(POOLINGS))
        _need(self.quality in ("exact", "graded"), "scorer.quality", self.quality, "exact or graded")
        for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "examples", "epochs",
                     "groups_per_step", "max_pairs", "logging_steps", "save_steps"):  # fmt: skip
            _need(getattr(self, name) >= 1, f"scorer.{name}", getattr(self, name), "at least 1")
        _need(self.threshold is None or 0 <= self.threshold <= 1, "scorer.threshold", self.threshold,
              "a share in [0, 1], or none")  # fmt: skip
        _need(self.max_tokens >= 8, "scorer.max_tokens", self.max_tokens, "at least 8")
        _need(self.learning_rate > 0, "scorer.learning_rate", self.learning_rate, "above 0")
        _need(self.weight_decay >= 0, "scorer.weight_decay", self.weight_decay, "at least 0")
        _need(0 <= self.warmup_share < 1, "scorer.warmup_share", self.warmup_share, "a share in [0, 1)")
        _need(
            0 <= self.regression_weight <= 1, "scorer.regression_weight", self.regression_weight, "a weight in [0, 1]"
        )
        _need(self.huber_delta > 0, "scorer.huber_delta", self.huber_delta, "above 0")
        _need(self.hinge_margin >= 0, "scorer.hinge_margin", self.hinge_margin, "at least 0")
        _need(self.hidden_size % self.num_attention_heads == 0, "scorer.hidden_size", self.hidden_size,
              f"a multiple of num_attention_heads ({self.num_attention_heads})")  # fmt: skip
        _check_saving("scorer", self.save_steps, self.logging_steps)
        unknown = sorted(set(self.files) - {"train", "test"})
        _need(not unknown, "scorer.files", unknown, "paths under the keys train and test")
        _need(
            not self.files or set(self.files) == {"train", "test"},
            "scorer.files",
            sorted(self.files),
            "both, train and test",
        )
        _need(
            not self.files or self.kind == "encoder",
            "scorer.kind",
            self.kind,
            "encoder where candidates come from files",
        )


@dataclass(frozen=True, kw_only=True)
class GRPOStageConfig:
    """Extended GRPO: the policy judges in both modes, and the scorer's contrast within a group is part of the reward."""

    steps: int = 100
    """Optimiser steps; 0 leaves the stage out."""
    batch_size: int = 128
    """Completions of one step, over all processes."""
    micro_batch_size: int | None = None
    """Completions trained on at once on one device; None: all of them."""
    num_generations: int = 8
    """Completions of one prompt: a group."""
    short_share: float = 0.5
    """Share of prompts in short mode, so that the policy keeps both abilities."""
    learning_rate: float = 1e-4
    """Peak rate, a twentieth of fine-tuning's; use 1e-6 for a pretrained model."""
    warmup_share: float = 0.1
    """Share of the steps over which the rate rises; it then falls along a cosine."""
    weight_decay: float = 0.0
    """Of AdamW; the KL term already holds the policy back."""
    max_grad_norm: float = 1.0
    """Clips gradients."""
    kl_weight: float = 0.04
    """Weight of the KL divergence from the policy at the start, as in the first GRPO paper."""
    temperature: float = 1.0
    """Of sampling. At 1 the samples are the policy's own."""
    quality: str = "exact"
    """Correctness of a verdict. `exact`: 1 for the truth, else 0. `graded`: 1 minus their distance."""
    format_weight: float = 0.2
    """Reward of a completion that ends by itself and states one verdict."""
    token_weight: float = 0.05
    """Price of a chain as long as `judge.options.max_chain_tokens`; shorter ones cost their share."""
    pair_weight: float = 0.5
    """lambda: weight of the pairwise reward among a group's chains; 0 leaves it out."""
    pair_bonus: float = 0.5
    """beta: what a right answer adds to the scorer's contrast, which lies in [-1, 1]."""
    logging_steps: int = 5
    """Steps between two lines of the metrics."""
    save_steps: int = 50
    """Steps between two checkpoints; a multiple of logging_steps."""

    def __post_init__(self) -> None:
        _need(self.steps >= 0, "grpo.steps", self.steps, "at least 0")
        _need(
            self.num_generations >= 2, "grpo.num_generations", self.num_generations, "at least 2: a group is compared"
        )
        _need(self.batch_size >= 1 and self.batch_size % self.num_generations == 0, "grpo.batch_size", self.batch_size,
              f"a multiple of num_generations ({self.num_generations})")  # fmt: skip
        _need(0 <= self.short_share <= 1, "grpo.short_share", self.short_share, "a share in [0, 1]")
        _need(0 <= self.warmup_share < 1, "grpo.warmup_share", self.warmup_share, "a share in [0, 1)")
        for name in ("learning_rate", "max_grad_norm", "temperature"):
            _need(getattr(self, name) > 0, f"grpo.{name}", getattr(self, name), "above 0")
        for name in ("weight_decay", "kl_weight", "format_weight", "token_weight", "pair_weight", "pair_bonus"):
            _need(getattr(self, name) >= 0, f"grpo.{name}", getattr(self, name), "at least 0")
        _need(self.quality in ("exact", "graded"), "grpo.quality", self.quality, "exact or graded")
        for name in ("logging_steps", "save_steps"):
            _need(getattr(self, name) >= 1, f"grpo.{name}", getattr(self, name), "at least 1")
        _check_saving("grpo", self.save_steps, self.logging_steps)
        _check_batch("grpo", self.batch_size, self.micro_batch_size, "float32")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured between the stages, on examples that are never trained on."""

    examples: int = 500
    """Examples of the split; a share of 0.9 is then known to within 2.7 points (95 %)."""
    split: str = "calibration"
    """`calibration` while recipes are chosen, `test` once they are frozen."""
    batch_size: int = 64
    """Examples judged at once."""

    def __post_init__(self) -> None:
        _need(self.examples >= 1, "evaluation.examples", self.examples, "at least 1")
        _need(self.split in ("calibration", "test"), "evaluation.split", self.split, "calibration or test")
        _need(self.batch_size >= 1, "evaluation.batch_size", self.batch_size, "at least 1")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run of `egrm train`."""

    seed: int = 0
    """Of data, initial weights, sampling, everything."""
    report_to: list[str] = field(default_factory=list)
    """Trackers of Transformers beside the metrics file, such as trackio or tensorboard."""
    data: DataConfig = field(default_factory=DataConfig)
    """Where examples come from."""
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    """How the checkpoint judges."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    """Its language model."""
    sft: SFTStageConfig = field(default_factory=SFTStageConfig)
    """Stage 1."""
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    """The split between stage 1's rounds."""
    scorer: ScorerStageConfig = field(default_factory=ScorerStageConfig)
    """Stage 2."""
    grpo: GRPOStageConfig = field(default_factory=GRPOStageConfig)
    """Stage 3."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """What is measured."""

    def __post_init__(self) -> None:
        _need(not self.data.files or self.scorer.data_options is None, "scorer.data_options", self.scorer.data_options,
              "left out where `data.files` gives the examples: options are a world's")  # fmt: skip


def load_config(path: str | Path) -> TrainConfig:
    """Read a YAML file.

    Args:
        path: The file; what it leaves out keeps its default.

    Raises:
        ConfigError: It cannot be read, or a key is unknown, or a value of the wrong type or out of range.
    """
    try:
        values = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(f"The configuration {path} must be a readable YAML file: {reason}.") from error
    return read_config({} if values is None else values)


def read_config(values: Any) -> TrainConfig:
    """A run's configuration from plain data.

    Args:
        values: Mapping of sections, as `yaml.safe_load` returns it.

    Raises:
        ConfigError: A key is unknown, or a value of the wrong type or out of range.
    """
    return _read(TrainConfig, values, "")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain data that `read_config` reads back; schedules as lists of pairs.

    Args:
        config: A configuration or a section of one.
    """
    return {f.name: _plain(getattr(config, f.name)) for f in fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return [list(point) for point in value.points]
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return {key: _plain(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value


def _read(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{f'`{where}`' if where else 'The configuration'} must be a section of keys, got {values!r}."
        )
    hints, known = get_type_hints(kind), [f.name for f in fields(kind)]
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        raise ConfigError(
            f"Unknown key {', '.join(f'{where}.{key}'.lstrip('.') for key in unknown)}.",
            f"Known here: {', '.join(known)}.",
        )
    read = {name: _value(hints[name], value, f"{where}.{name}".lstrip(".")) for name, value in values.items()}
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    assert not missing, f"every field of {kind.__name__} has a default, got none for {missing}"
    return kind(**read)


def _value(hint: Any, value: Any, where: str) -> Any:  # hint: an annotation of a field
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        options = [option for option in get_args(hint) if option is not type(None)]
        if value is None and len(options) < len(get_args(hint)):
            return None
        if len(options) == 1:
            return _value(options[0], value, where)
        if any(isinstance(value, get_origin(option) or option) for option in options):
            return value
        raise _wrong(where, value, " or ".join(str(option) for option in options))
    if hint is Schedule:
        return Schedule.read(value, where)
    if isinstance(hint, type) and is_dataclass(hint):
        return _read(hint, value, where)
    if hint is float and _is_number(value):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # YAML reads 1e3 as a float
    base: Any = get_origin(hint) or hint
    if isinstance(value, str) and hint is float and _reads_as_number(value):
        return float(value)  # YAML reads 2e-3 as text
    if not isinstance(value, base) or (isinstance(value, bool) and base is not bool):
        raise _wrong(where, value, base.__name__)
    entries: Any = value
    if base is list and not all(isinstance(entry, get_args(hint)[0]) for entry in entries):
        raise _wrong(where, value, f"list of {get_args(hint)[0].__name__}")
    return dict(entries) if base is dict else entries


def _wrong(where: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"`{where}` must be a value of type {expected}, got {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_batch(section: str, batch: int, micro: int | None, precision: str) -> None:
    _need(micro is None or (micro >= 1 and batch % micro == 0), f"{section}.micro_batch_size", micro,
          f"a divisor of batch_size ({batch})")  # fmt: skip
    _need(precision in ("float32", "bfloat16"), f"{section}.precision", precision, "float32 or bfloat16")


def _check_saving(section: str, save: int, log: int) -> None:
    _need(save % log == 0, f"{section}.save_steps", save,
          f"a multiple of logging_steps ({log}), so that a resumed run logs the same means")  # fmt: skip


def _need(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"`{name}` must be {expected}, got {value!r}.")


__all__ = [
    "DataConfig",
    "EvaluationConfig",
    "GRPOStageConfig",
    "GeneratorConfig",
    "JudgeConfig",
    "LoraConfig",
    "RoutingConfig",
    "SFTStageConfig",
    "Schedule",
    "ScorerStageConfig",
    "TrainConfig",
    "load_config",
    "read_config",
    "to_dict",
]
