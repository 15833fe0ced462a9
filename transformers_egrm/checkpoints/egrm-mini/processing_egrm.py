"""The package that brings this folder has the code: the folder points at it."""

from transformers_egrm.modeling.processing_egrm import EGRMProcessor


__all__ = ["EGRMProcessor"]
