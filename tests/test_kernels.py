"""Products of large models go to oneDNN, those of small ones do not pay for the detour; the numbers stay the same."""

import pytest
import torch
from tiny import tiny_generator

from transformers_egrm.modeling import engine_backbone_egrm
from transformers_egrm.modeling.engine_backbone_egrm import FAST_HIDDEN_SIZE, Backbone
from transformers_egrm.modeling.engine_kernels_egrm import fast_linear, onednn_linear_works
from transformers_egrm.modeling.engine_prefill_egrm import positions_of


@pytest.mark.parametrize("hidden_size", [32, FAST_HIDDEN_SIZE])
def test_only_large_models_take_the_fast_products(hidden_size, monkeypatch):
    entered = []

    class Watched(fast_linear):
        def __enter__(self):
            entered.append(True)
            return super().__enter__()

    monkeypatch.setattr(engine_backbone_egrm, "fast_linear", Watched)
    model = tiny_generator(hidden_size=hidden_size, num_hidden_layers=1, initializer_range=0.05)
    backbone, ids = Backbone(model), torch.arange(5, 12)[None]
    with torch.no_grad():
        hidden = backbone.run(ids, None, positions_of(torch.ones_like(ids)), backbone.new_cache())
        logits = backbone.logits(hidden[:, -1])
        assert torch.allclose(logits, model(ids).logits[:, -1], atol=1e-4)
    assert bool(entered) is (hidden_size >= FAST_HIDDEN_SIZE)


@pytest.mark.skipif(not onednn_linear_works(), reason="this build of torch has no oneDNN")
def test_fast_products_are_products():
    x, layer = torch.randn(3, 64), torch.nn.Linear(64, 48)
    with torch.no_grad():
        plain = layer(x)
        with fast_linear():
            assert torch.allclose(layer(x), plain, atol=1e-5)
