"""The package that brings this folder has the code: the folder points at it."""

from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


__all__ = ["EGRMRewardModel"]
