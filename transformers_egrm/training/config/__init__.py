"""What `egrm train` reads from one YAML file: every key is known, every value checked, every number has a default.

Each section is a dataclass; its docstrings say what a key is and why it has the value it has.
"""

from transformers_egrm.training.config.grpo import GRPOStageConfig
from transformers_egrm.training.config.reading import to_dict
from transformers_egrm.training.config.run import (
    DataConfig,
    EvaluationConfig,
    GeneratorConfig,
    JudgeConfig,
    TrainConfig,
    load_config,
    read_config,
    read_yaml,
)
from transformers_egrm.training.config.scorer import ScorerStageConfig
from transformers_egrm.training.config.sft import LoraConfig, RoutingConfig, SFTStageConfig
from transformers_egrm.training.config.values import Schedule


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
    "read_yaml",
    "to_dict",
]
