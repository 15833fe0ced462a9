"""A generative reward model for Transformers that reasons only when it has to.

Importing this package adds names to Transformers' registries, and does nothing else: the model type `egrm_reward`
(AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoModelForDecision, AutoProcessor), the pipeline task `reward-scoring`, and the
attention function of the `star` decoder.
"""

from importlib.metadata import version

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor
from transformers.pipelines import PIPELINE_REGISTRY

from transformers_egrm.bundle import MINI_FOLDER, load_mini
from transformers_egrm.judge import JudgeResult, RewardJudge
from transformers_egrm.modeling.configuration_egrm import EGRMConfig, JudgeOptions
from transformers_egrm.modeling.decision_egrm import HAS_DECISIONS, EGRMForDecision
from transformers_egrm.modeling.errors_egrm import EGRMError
from transformers_egrm.modeling.judge_values_egrm import EGRMOutput, Status
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.pipeline_egrm import RewardScoringPipeline
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.verdict_consensus_egrm import Route
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


__version__ = version("transformers-egrm")

# Registered classes win over the copies inside a checkpoint, even with `trust_remote_code=True`: one set of classes.
AutoConfig.register(EGRMConfig.model_type, EGRMConfig, exist_ok=True)
AutoModel.register(EGRMConfig, EGRMRewardModel, exist_ok=True)
AutoModelForSequenceClassification.register(EGRMConfig, EGRMRewardModel, exist_ok=True)
AutoProcessor.register(EGRMConfig, EGRMProcessor, exist_ok=True)
if HAS_DECISIONS:
    from transformers import AutoModelForDecision

    AutoModelForDecision.register(EGRMConfig, EGRMForDecision, exist_ok=True)
PIPELINE_REGISTRY.register_pipeline(
    "reward-scoring", pipeline_class=RewardScoringPipeline, pt_model=AutoModel, type="text",
    default={"model": (str(MINI_FOLDER), "main")},
)  # fmt: skip

__all__ = [
    "EGRMConfig",
    "EGRMError",
    "EGRMForDecision",
    "EGRMOutput",
    "EGRMProcessor",
    "EGRMRewardModel",
    "JudgeOptions",
    "JudgeResult",
    "RewardJudge",
    "RewardScoringPipeline",
    "Route",
    "Status",
    "VerdictSpace",
    "__version__",
    "load_mini",
]
