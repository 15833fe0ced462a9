"""The package that brings this folder has the code: the folder points at it."""

from transformers_egrm.modeling.decision_egrm import EGRMForDecision


__all__ = ["EGRMForDecision"]
