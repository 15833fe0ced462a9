"""A generative reward model for Transformers that reasons only when it has to.

Importing this package teaches Transformers the model type `egrm_reward` (AutoConfig, AutoModel,
AutoModelForSequenceClassification, AutoProcessor) and the pipeline task `reward-scoring`; it changes nothing else.
"""

from importlib.metadata import version

from transformers import AutoConfig

from transformers_egrm.modeling.configuration_egrm import EGRMConfig, JudgeOptions
from transformers_egrm.modeling.errors_egrm import EGRMError
from transformers_egrm.modeling.outputs_egrm import EGRMOutput, Route, Status


__version__ = version("transformers-egrm")

# Registered classes win over the copies inside a checkpoint, even with `trust_remote_code=True`: one set of classes.
AutoConfig.register(EGRMConfig.model_type, EGRMConfig, exist_ok=True)

__all__ = ["EGRMConfig", "EGRMError", "EGRMOutput", "JudgeOptions", "Route", "Status", "__version__"]
