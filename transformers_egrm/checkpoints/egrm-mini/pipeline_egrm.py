"""The package that brings this folder has the code: the folder points at it."""

from transformers_egrm.modeling.pipeline_egrm import RewardScoringPipeline


__all__ = ["RewardScoringPipeline"]
