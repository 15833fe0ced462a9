"""A whole run: what all stages share, and the stages."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.config.grpo import GRPOStageConfig
from transformers_egrm.training.config.reading import read_section
from transformers_egrm.training.config.scorer import ScorerStageConfig
from transformers_egrm.training.config.sft import RoutingConfig, SFTStageConfig
from transformers_egrm.training.config.values import need


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
        need(self.train_examples >= 1, "data.train_examples", self.train_examples, "at least 1")
        unknown = sorted(set(self.files) - {"train", "calibration", "test"})
        need(not unknown, "data.files", unknown, "paths under the keys train, calibration and test")
        need(not self.files or "train" in self.files, "data.files", sorted(self.files), "a path for `train`")


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
            need(getattr(self, name) >= 1, f"generator.{name}", getattr(self, name), "at least 1")
        need(self.rope_theta > 1, "generator.rope_theta", self.rope_theta, "above 1")
        need(self.hidden_size % self.num_attention_heads == 0, "generator.hidden_size", self.hidden_size,
             f"a multiple of num_attention_heads ({self.num_attention_heads})")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured between the stages, on examples that are never trained on."""

    examples: int = 500
    """Examples of the split; a share of 0.9 is then known to within 2.7 points (95 %)."""
    split: str = "calibration"
    """`calibration` while recipes are chosen, `test` once they are frozen."""
    stream: int = 0
    """Which stream of the split, in place of the run's seed: two training seeds are measured on the same examples."""
    batch_size: int = 64
    """Examples judged at once."""

    def __post_init__(self) -> None:
        need(self.examples >= 1, "evaluation.examples", self.examples, "at least 1")
        need(self.split in ("calibration", "test"), "evaluation.split", self.split, "calibration or test")
        need(self.batch_size >= 1, "evaluation.batch_size", self.batch_size, "at least 1")
        need(self.stream >= 0, "evaluation.stream", self.stream, "at least 0")


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
        need(not self.data.files or self.scorer.data_options is None, "scorer.data_options", self.scorer.data_options,
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
    return read_section(TrainConfig, values, "")


__all__ = [
    "DataConfig", "EvaluationConfig", "GeneratorConfig", "JudgeConfig", "TrainConfig", "load_config", "read_config",
]  # fmt: skip
