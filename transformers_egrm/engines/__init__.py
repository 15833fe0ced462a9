"""Generators that run on a server: any OpenAI-style one writes, and the judge stays here.

`connect` finds out what a server can do; the result is an `Engine`, to be put in place of the local one:

    model = load_without_generator("./judge")
    model.engine = connect("http://127.0.0.1:8000", model.processor, model.backbone.cost)
"""

from transformers_egrm.engines.connecting import Address, connect
from transformers_egrm.engines.engine import HttpEngine
from transformers_egrm.engines.loading import load_without_generator


__all__ = ["Address", "HttpEngine", "connect", "load_without_generator"]
