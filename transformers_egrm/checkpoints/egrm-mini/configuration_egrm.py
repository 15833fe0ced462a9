"""The package that brings this folder has the code: the folder points at it."""

from transformers_egrm.modeling.configuration_egrm import EGRMConfig


__all__ = ["EGRMConfig"]
