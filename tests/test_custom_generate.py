"""The ladder by path: what any causal LM can use without this package."""

from pathlib import Path

import pytest
import torch
from tiny import GENERATORS, tiny_generator

from transformers_egrm.export import write_custom_generate
from transformers_egrm.modeling.engine_generate_egrm import generate
from transformers_egrm.modeling.errors_egrm import ConfigError


FOLDER = Path(__file__).parent.parent / "examples" / "custom_generate" / "ladder"


def padded_batch():
    ids = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return ids * mask, mask


def test_the_committed_folder_is_a_copy_of_the_source(tmp_path):
    written = {path.name: path.read_bytes() for path in write_custom_generate(tmp_path)}
    committed = {path.name: path.read_bytes() for path in (FOLDER / "custom_generate").glob("*.py")}
    assert committed == written


@pytest.mark.parametrize("family", GENERATORS)
def test_both_decoders_draw_the_same_branches(family):
    ids, mask = padded_batch()
    model = tiny_generator(family)
    star = generate(model, ids, attention_mask=mask, max_new_tokens=12, decoder="star")
    assert torch.equal(star, generate(model, ids, attention_mask=mask, max_new_tokens=12, decoder="expand"))
    assert star.shape[0] == 10


def test_by_path_it_returns_the_same_branches_and_prefills_once():
    ids, mask = padded_batch()
    model = tiny_generator("llama")
    fed = []
    hook = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    by_path = model.generate(
        ids,
        attention_mask=mask,
        custom_generate=str(FOLDER),
        trust_remote_code=True,
        temperatures=[0.5, 0.9, 1.2],
        top_ps=0.9,
        seed=7,
        max_new_tokens=6,
    )
    hook.remove()
    # Shorter ones are trials of the model, made once for this copy of the code.
    assert [shape for shape in fed if shape[1] >= ids.shape[1]] == [(2, 9)]
    direct = generate(
        model, ids, attention_mask=mask, temperatures=[0.5, 0.9, 1.2], top_ps=0.9, seed=7, max_new_tokens=6
    )
    assert torch.equal(by_path, direct)


def test_temperature_zero_is_greedy_decoding():
    ids, _ = padded_batch()
    model = tiny_generator("gemma3")
    greedy = model.generate(ids[1:], max_new_tokens=12, do_sample=False)
    assert torch.equal(generate(model, ids[1:], temperatures=[0.0], max_new_tokens=12), greedy)


def test_a_prompt_draws_the_same_branches_alone_and_in_a_batch():
    ids, mask = padded_batch()
    model = tiny_generator("qwen3")
    together = generate(model, ids, attention_mask=mask, max_new_tokens=8)[:5, 4:]
    alone = generate(model, ids[:1, 4:], max_new_tokens=8)
    width = min(together.shape[1], alone.shape[1])
    assert torch.equal(together[:, :width], alone[:, :width])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperatures": []}, "one top-p per temperature"),
        ({"top_ps": [0.9]}, "one top-p per temperature"),
        ({"num_beams": 4}, "num_beams"),
        ({"temperatures": [-1.0]}, "at least 0"),
        ({"temperatures": [float("nan")]}, "at least 0"),
        ({"top_ps": 0.0}, "in \\(0, 1]"),
        ({"max_new_tokens": 0}, "at least one token"),
    ],
)
def test_what_has_no_meaning_here_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        generate(tiny_generator("llama"), torch.tensor([[5, 6]]), **arguments)
