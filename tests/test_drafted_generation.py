"""The doors to drafted generation and to the ladder: what they serve, what they refuse, and what a round costs."""

import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from test_speculative import chi_square_p_value, draft_of, exact_law
from tiny import tiny_generator, tiny_tokenizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
)

from transformers_egrm import EGRMRewardModel
from transformers_egrm.modeling.draft_generate_egrm import generate, speculative_sample
from transformers_egrm.modeling.draft_rules_egrm import best_ratio
from transformers_egrm.modeling.draft_sources_egrm import MOST_PADDING, Warp
from transformers_egrm.modeling.draft_tree_egrm import Tree
from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_generate_egrm import generate as ladder
from transformers_egrm.modeling.engine_sampling_egrm import warped_probs
from transformers_egrm.modeling.errors_egrm import ConfigError


FOLDERS = Path(__file__).parent.parent / "examples" / "custom_generate"
IDS = torch.arange(5, 15)[None]
DOORS = ("function", "callable", "judge", "folder")


def through(door: str, model, ids=IDS, **options):
    """One call of speculative generation by each of its doors."""
    options.setdefault("draft_layers", 2)
    if door == "function":
        return generate(model, ids, **options)
    if door == "judge":
        judge = EGRMRewardModel.from_components(model, tokenizer=tiny_tokenizer())
        judge.generation_config = model.generation_config
        return judge.generate(ids, **options)
    how = {"custom_generate": speculative_sample}
    if door == "folder":
        how = {"custom_generate": str(FOLDERS / "speculative"), "trust_remote_code": True}
    return model.generate(ids, **how, **options)


class Streamer:
    """Remembers what it was handed."""

    def __init__(self) -> None:
        self.got, self.ended = [], 0

    def put(self, value: torch.Tensor) -> None:
        self.got += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


# -- white lists ------------------------------------------------------------------------------------------------------------


UNKNOWN = {
    "position_ids": torch.arange(3, 13)[None],
    "inputs_embeds": torch.zeros(1, 10, 32),
    "output_scores": True,
    "output_hidden_states": True,
    "assistant_model": tiny_generator("llama", seed=3),
    "min_new_tokens": 3,
    "bad_words_ids": [[7]],
    "guidance_scale": 1.5,
    "no_repeat_ngram_size": 2,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_keyword_that_drafting_does_not_know_is_refused_by_name_at_every_door(door, name):
    model = tiny_generator("llama", eos_token_id=None)
    with pytest.raises(ValueError, match=name if door != "callable" else "does not (take|apply)") as error:
        through(door, model, max_new_tokens=4, **{name: UNKNOWN[name]})
    assert type(error.value).__name__ == "ConfigError"


@pytest.mark.parametrize(
    "name", [*UNKNOWN, "streamer", "stop_strings", "max_time", "num_return_sequences", "draft_model"]
)
def test_a_keyword_that_the_ladder_does_not_know_is_refused_by_name_at_every_door(name):
    model = tiny_generator("llama", eos_token_id=None)
    others = {"streamer": Streamer(), "stop_strings": ["a"], "max_time": 1.0, "num_return_sequences": 2}
    options = {name: (UNKNOWN | others).get(name, model), "max_new_tokens": 4, "temperatures": [0.5]}
    judge = EGRMRewardModel.from_components(model, tokenizer=tiny_tokenizer())
    by_path = {"custom_generate": str(FOLDERS / "ladder"), "trust_remote_code": True}
    for call, more in ((lambda *a, **k: ladder(model, *a, **k), {}), (judge.generate, {}), (model.generate, by_path)):
        with pytest.raises(ValueError, match=name) as error:
            call(IDS, **options, **more)
        assert type(error.value).__name__ == "ConfigError"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("field", [{"bad_words_ids": [[7]]}, {"min_new_tokens": 3}, {"suppress_tokens": [7]}])
def test_a_checkpoints_own_generation_config_is_honoured_or_refused_never_ignored(door, field):
    model = tiny_generator("llama", eos_token_id=None)
    model.generation_config.update(**field)
    (name,) = field
    with pytest.raises(ValueError, match=name) as error:
        through(door, model, max_new_tokens=4)
    assert type(error.value).__name__ == "ConfigError"
    if door == "folder":
        with pytest.raises(ValueError, match=name):
            model.generate(IDS, custom_generate=str(FOLDERS / "ladder"), trust_remote_code=True)


def test_a_value_that_asks_for_nothing_outdoes_the_checkpoints_own():
    model = tiny_generator("llama", eos_token_id=None)
    greedy = model.generate(IDS, max_new_tokens=4, do_sample=False)
    model.generation_config.update(bad_words_ids=[[7]], repetition_penalty=1.3)
    with pytest.raises(ConfigError, match="repetition_penalty"):
        ladder(model, IDS, temperatures=[0.0], max_new_tokens=4, bad_words_ids=[])
    told = {"max_new_tokens": 4, "bad_words_ids": [], "repetition_penalty": 1.0}
    assert torch.equal(ladder(model, IDS, temperatures=[0.0], **told), greedy)
    assert torch.equal(generate(model, IDS, draft_layers=2, **told), greedy)


@pytest.mark.parametrize("door", DOORS)
def test_max_length_of_the_checkpoint_is_the_length_of_prompt_and_text(door):
    model = tiny_generator("llama", eos_token_id=None)
    model.generation_config.max_length = 17
    assert through(door, model).shape == (1, 17)
    if door == "folder":
        by_path = {"custom_generate": str(FOLDERS / "ladder"), "trust_remote_code": True}
        assert model.generate(IDS, temperatures=[0.5], **by_path).shape == (1, 17)


def test_fields_of_a_config_of_the_call_stand_before_the_models_own():
    model = tiny_generator("llama", eos_token_id=None)
    model.generation_config.max_new_tokens = 9
    assert generate(model, IDS, draft_layers=2).shape == (1, 19)
    assert generate(model, IDS, GenerationConfig(max_new_tokens=3), draft_layers=2).shape == (1, 13)
    assert ladder(model, IDS, GenerationConfig(max_new_tokens=3), temperatures=[0.0]).shape == (1, 13)


def test_processors_of_a_caller_are_applied_or_refused_never_dropped():
    model = tiny_generator("llama", eos_token_id=None)
    options = {"draft_layers": 2, "do_sample": True, "top_k": 0, "max_new_tokens": 8}
    cold = model.generate(
        IDS, custom_generate=speculative_sample, logits_processor=LogitsProcessorList([TemperatureLogitsWarper(0.05)]),
        **options,
    )  # fmt: skip
    assert torch.equal(cold, generate(model, IDS, temperature=0.05, **options))
    with pytest.raises(ConfigError, match="logits_processor"):
        generate(model, IDS, logits_processor=[TemperatureLogitsWarper(0.05)], **options)


# -- stopping and streaming -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_a_streamer_gets_every_token_and_its_end(door):
    model, streamer = tiny_generator("llama", eos_token_id=None), Streamer()
    out = through(door, model, max_new_tokens=11, streamer=streamer)
    assert streamer.got == out[0].tolist()
    assert streamer.ended == 1


@pytest.mark.parametrize("door", DOORS)
def test_a_streamer_hears_the_end_of_a_call_that_is_refused(door):
    streamer = Streamer()
    with pytest.raises(ValueError, match="num_beams"):
        through(door, tiny_generator("llama"), max_new_tokens=4, streamer=streamer, num_beams=2)
    assert streamer.ended == 1 or door == "callable"  # there Transformers refuses a streamer beside beams itself
    streamer = Streamer()
    with pytest.raises(ValueError, match="one text, got 2"):
        through(door, tiny_generator("llama"), IDS.expand(2, -1), max_new_tokens=4, streamer=streamer)
    assert streamer.ended == 1


def test_stop_strings_cut_a_block_as_an_end_of_sequence_does():
    tokenizer = tiny_tokenizer()
    model = tiny_generator("llama", vocab_size=len(tokenizer), eos_token_id=None)
    greedy = model.generate(IDS, max_new_tokens=24, do_sample=False)[0]
    # The first token late in the text that stands nowhere before.
    place = next(i for i in range(16, 34) if greedy[i] not in greedy[:i] and tokenizer.decode(greedy[i]).strip())
    stop = tokenizer.decode(greedy[place])
    asked = {"max_new_tokens": 24, "stop_strings": [stop], "tokenizer": tokenizer}
    plain = model.generate(IDS, do_sample=False, **asked)
    assert plain.shape[1] < 34
    for door in ("function", "judge", "folder"):
        assert torch.equal(through(door, model, **asked), plain)
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, [stop])])
    assert torch.equal(through("callable", model, max_new_tokens=24, stopping_criteria=criteria), plain)
    with pytest.raises(ConfigError, match="tokenizer"):
        generate(model, IDS, draft_layers=2, stop_strings=[stop])
    model.generation_config.stop_strings = [stop]
    asked.pop("stop_strings")
    assert torch.equal(through("folder", model, **asked), plain)


@pytest.mark.parametrize("door", DOORS)
def test_criteria_are_asked_token_by_token_and_cut_each_row_by_itself(door):
    model = tiny_generator("llama")  # without an end token Transformers writes on in rows that have stopped
    ids = torch.stack([IDS[0], IDS[0].flip(0)])
    seen = []

    def odd_sum(input_ids, scores, **kwargs):
        seen.append(input_ids.shape[1])
        return input_ids[:, -4:].sum(1) % 3 == 0

    criteria = StoppingCriteriaList([odd_sum])
    plain = model.generate(ids, max_new_tokens=16, do_sample=False, stopping_criteria=criteria)
    seen.clear()
    out = through(door, model, ids, max_new_tokens=16, stopping_criteria=criteria)
    assert torch.equal(out, plain)
    assert min(seen) == 11


@pytest.mark.parametrize("door", DOORS)
def test_max_time_ends_a_text_after_the_round_that_reaches_it(door):
    model = tiny_generator("llama", eos_token_id=None)
    assert through(door, model, max_new_tokens=40, max_time=1e-9).shape[1] == 11
    started = time.monotonic()
    assert through(door, model, max_new_tokens=12, max_time=600.0).shape[1] == 22
    assert time.monotonic() - started < 300


def test_right_padding_is_warned_about_as_in_transformers(monkeypatch):
    from transformers_egrm.modeling import engine_settings_egrm

    said = []
    monkeypatch.setattr(engine_settings_egrm.logger, "warning", said.append)
    model, mask = tiny_generator("llama", eos_token_id=None), torch.ones_like(IDS)
    generate(model, IDS, attention_mask=mask, draft_layers=2, max_new_tokens=2)
    ladder(model, IDS, attention_mask=mask, temperatures=[0.5], max_new_tokens=2)
    assert said == []
    mask[0, -2:] = 0
    generate(model, IDS, attention_mask=mask, draft_layers=2, max_new_tokens=2)
    ladder(model, IDS, attention_mask=mask, temperatures=[0.5], max_new_tokens=2)
    assert ["right-padding" in text for text in said] == [True, True]


# -- memory ---------------------------------------------------------------------------------------------------------------


def test_the_trees_buffers_grow_instead_of_reserving_the_budget(monkeypatch):
    rooms, slots = [], []
    real_init, real_keep = Tree._init, Tree.keep
    monkeypatch.setattr(Tree, "_init", lambda self, b, p, room: (rooms.append(room), real_init(self, b, p, room))[1])

    def keep(self, *args):
        real_keep(self, *args)
        slots.append(self.layers[0].keys.shape[2])

    monkeypatch.setattr(Tree, "keep", keep)
    model = tiny_generator("llama", max_position_embeddings=200_000, eos_token_id=None)
    first = int(generate(model, IDS, draft_layers=2, max_new_tokens=1, eos_token_id=[])[0, -1])
    rooms.clear()
    # The text ends with its first token: the budget is only what it might have taken.
    generate(model, IDS, draft_layers=2, max_new_tokens=120_000, eos_token_id=first)
    assert max(rooms) <= 256 + 4 * 8 + 1
    slots.clear()
    out = generate(model, IDS, draft_model=model, max_new_tokens=700, eos_token_id=[])
    assert out.shape == (1, 710)
    assert max(slots) <= 1.25 * (710 + 33) + 64
    assert torch.equal(out, model.generate(IDS, max_new_tokens=700, do_sample=False))


# -- vocabularies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [(3, 5), (5, 3)])
@pytest.mark.parametrize(("method", "copies"), [("bv", 1), ("spectr_gbv", 2), ("md_bv_plus", 3)])
def test_a_draft_with_other_padding_leaves_the_targets_law_alone(ours, theirs, method, copies):
    small = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    model = tiny_generator("llama", seed=5, vocab_size=ours, **small)
    draft = draft_of("llama", seed=6, vocab_size=theirs, **small)
    prompt, num_tokens, rows = torch.tensor([0, 1, ours - 1, 2, 0, 1, 0]), 4 if ours == 3 else 3, 4000
    out = generate(
        model, prompt.expand(rows, -1), item_ids=range(rows), do_sample=True, temperature=1.5, top_k=0,
        verification=method, num_drafts=copies, draft_length=3, max_new_tokens=num_tokens, seed=1, draft_model=draft,
    )  # fmt: skip
    written = (out[:, len(prompt) :] * ours ** torch.arange(num_tokens - 1, -1, -1)).sum(1)
    law = exact_law(model, prompt, num_tokens, 1.5, 1.0)
    assert chi_square_p_value(torch.bincount(written, minlength=ours**num_tokens), law) > 1e-3


@pytest.mark.parametrize(("ours", "theirs"), [(400, 464), (464, 400)])
@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.3}, {"do_sample": True, "top_p": 0.9, "top_k": 0}])
def test_padded_vocabularies_pass_through_every_warp(ours, theirs, settings):
    model = tiny_generator("llama", vocab_size=ours, eos_token_id=None)
    draft = draft_of("llama", vocab_size=theirs)
    ids = torch.cat([IDS, torch.tensor([[ours - 1]])], 1)  # a token that the shorter draft does not know
    out = generate(model, ids, draft_model=draft, max_new_tokens=12, draft_length=4, **settings)
    assert int(out.max()) < ours
    if not settings.get("do_sample"):
        assert torch.equal(out, model.generate(ids, max_new_tokens=12, do_sample=False, **settings))


def test_a_vocabulary_that_differs_by_more_than_padding_is_another_tokenizer():
    model = tiny_generator("llama")
    generate(model, IDS, draft_model=draft_of("llama", vocab_size=400 + MOST_PADDING), max_new_tokens=2)
    with pytest.raises(ConfigError, match="1425 tokens and the target 400"):
        generate(model, IDS, draft_model=draft_of("llama", vocab_size=401 + MOST_PADDING), max_new_tokens=2)


# -- devices --------------------------------------------------------------------------------------------------------------

ELSEWHERE = torch.device("cpu", 1)


class TwoDevices(TorchFunctionMode):
    """Plays a second device: a tensor is there if it was sent there, and no operation may mix both.

    Tensors of one number may be anywhere, as on real devices.
    """

    def __init__(self, residents) -> None:
        super().__init__()
        self.moves = 0
        for tensor in residents:
            tensor.there = True

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        there = any(getattr(tensor, "there", False) for tensor in given)
        name = getattr(func, "__name__", "")
        if func == torch.Tensor.device.__get__:
            return ELSEWHERE if there else func(*args, **kwargs)
        if name in ("__setattr__", "__set__"):
            return func(*args, **kwargs)
        devices = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
        if name in ("to", "cpu") and (devices or name == "cpu"):
            there = devices == [ELSEWHERE]
            self.moves += 1
            args, kwargs = (
                (args[0].clone(), *[a for a in args[1:] if not isinstance(a, torch.device)]),
                {key: value for key, value in kwargs.items() if not isinstance(value, torch.device)},
            )
            out = func(*args, **kwargs) if len(args) > 1 or kwargs else args[0]
            out.there = there
            return out
        if devices == [ELSEWHERE]:
            there = True
            strip = lambda leaf: torch.device("cpu") if isinstance(leaf, torch.device) else leaf  # noqa: E731
            args, kwargs = tree_map(strip, args), tree_map(strip, kwargs)
        places = {bool(getattr(tensor, "there", False)) for tensor in given if tensor.ndim > 0}
        if len(places) > 1 and name not in ("copy_",):
            raise RuntimeError(f"{name} mixes tensors of two devices")
        out = func(*args, **kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                leaf.there = there
        return out


@pytest.mark.parametrize(("method", "copies"), [("bv", 1), ("spectr_gbv", 2), ("md_bv_plus", 3)])
@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "top_p": 0.9, "repetition_penalty": 1.2}])
def test_a_draft_may_live_on_another_device_than_the_target(method, copies, settings):
    model, draft = tiny_generator("llama"), draft_of("llama")
    ids = torch.stack([IDS[0], IDS[0].flip(0), IDS[0].roll(3)])
    options = {"draft_model": draft, "verification": method, "num_drafts": copies, "max_new_tokens": 14} | settings
    here = generate(model, ids, draft_length=3, **options)
    with TwoDevices([*draft.parameters(), *draft.buffers()]) as devices:
        assert Backbone(draft).device == ELSEWHERE
        out = generate(model, ids, draft_length=3, **options)
        assert out.device != ELSEWHERE
    assert devices.moves > 20
    assert torch.equal(out, here)


def test_the_played_device_notices_what_real_ones_refuse():
    weight = torch.ones(3)
    with TwoDevices([weight]), pytest.raises(RuntimeError, match="two devices"):
        _ = weight + torch.ones(3)


# -- what a round costs -----------------------------------------------------------------------------------------------------


class Cost(TorchDispatchMode):
    """Counts operations, and how often the host waits: numbers read, and shapes that depend on data."""

    WAITS = (
        "aten._local_scalar_dense",
        "aten.nonzero",
        "aten.masked_select",
        "aten.equal",
        "aten.repeat_interleave.Tensor",
    )

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.waits = 0, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        name = str(func)
        by_mask = name.startswith("aten.index") and any(
            index is not None and index.dtype == torch.bool for index in tree_leaves(args[1]) if index is not None
        )
        if by_mask or name.startswith(self.WAITS):
            self.waits[name] += 1
        return func(*args, **(kwargs or {}))


def cost_of(monkeypatch, model, tokens: int, **options):
    cost, real = Cost(), torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: (cost.waits.update(["tolist"]), real(self))[1])
    with cost:
        out = generate(
            model, IDS, max_new_tokens=tokens, eos_token_id=[], return_dict_in_generate=True, do_sample=True,
            temperature=0.7, seed=1, **options,
        )  # fmt: skip
    monkeypatch.undo()
    return cost.operations, sum(cost.waits.values()), out.statistics.rounds


@pytest.mark.parametrize(
    ("method", "copies", "top_p", "top_k", "most"),
    [
        ("sd", 1, 1.0, 0, 1), ("bv", 1, 1.0, 0, 1), ("md_bv_plus", 3, 1.0, 0, 1), ("md_bv", 3, 1.0, 0, 1),
        ("gbv", 1, 1.0, 0, 2), ("spectr_gbv", 3, 1.0, 0, 2), ("bv", 1, 0.9, 0, 2), ("md_bv_plus", 3, 1.0, 50, 2),
    ],
)  # fmt: skip
def test_a_round_makes_the_host_wait_at_most_twice(method, copies, top_p, top_k, most, monkeypatch):
    model, draft = tiny_generator("llama", eos_token_id=None), draft_of("llama")
    options = {"draft_model": draft, "num_drafts": copies, "verification": method, "top_p": top_p, "top_k": top_k}
    generate(model, IDS, max_new_tokens=4, **options)  # trials of the models are made once
    before, few, first = cost_of(monkeypatch, model, 10, **options)
    after, many, rounds = cost_of(monkeypatch, model, 40, **options)
    assert rounds - first >= 4
    assert (many - few) / (rounds - first) <= most
    # Of this pair, see docs/speculative.md.
    assert (after - before) / (rounds - first) < 4000


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_single_draft_is_run_without_a_mask(family, monkeypatch):
    model, draft = tiny_generator(family, eos_token_id=None), draft_of(family, eos_token_id=None)
    masks = []
    real = Backbone.run

    def run(self, tokens, mask, *args, **kwargs):
        if self.generator is draft:
            masks.append(mask)
        return real(self, tokens, mask, *args, **kwargs)

    generate(model, IDS, draft_model=draft, max_new_tokens=2)
    monkeypatch.setattr(Backbone, "run", run)
    out = generate(model, IDS, draft_model=draft, max_new_tokens=12, num_drafts=1, draft_length=4)
    # Of five passes of a round only the first may feed two tokens, which need one.
    assert sum(mask is not None for mask in masks) <= len(masks) / 4
    assert torch.equal(out, model.generate(IDS, max_new_tokens=12, do_sample=False))


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 0), (1.0, 20), (0.8, 30), (1.0, 1)])
@pytest.mark.parametrize("size", [50, 2000])
def test_numbers_of_the_host_give_the_same_law_as_tensors(size, top_p, top_k):
    logits = 3 * torch.randn(6, size, generator=torch.Generator().manual_seed(0))
    limited = logits if not top_k else logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    full = torch.full((6,), 0.7, dtype=torch.float64), torch.full((6,), top_p, dtype=torch.float64)
    for exact in (True, False):  # the nucleus is inside the candidates here
        support = Warp(0.7, top_p, top_k).support(logits, None, exact)
        assert torch.allclose(support.everywhere(size), warped_probs(limited, *full), atol=1e-12)


# -- K-SEQ's ratio ----------------------------------------------------------------------------------------------------------


def laws(rows: int, columns: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    drafts, targets = (torch.rand(rows, columns, generator=generator, dtype=torch.float64) ** 3 for _ in range(2))
    targets[:, ::7] = 0
    return drafts / drafts.sum(-1, keepdim=True), targets / targets.sum(-1, keepdim=True)


def gap(draft, target, ratio, count):
    covered = torch.minimum(draft, target / ratio[:, None]).sum(-1)
    return ratio * covered - (1 - (1 - covered) ** count)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_k_seqs_ratio_is_the_root_that_halving_finds(count):
    draft, target = laws(40, 60, seed=count)
    low, high = torch.ones(40, dtype=torch.float64), torch.full((40,), float(count), dtype=torch.float64)
    for _ in range(60):
        middle = (low + high) / 2
        feasible = gap(draft, target, middle, count) >= 0
        low, high = torch.where(feasible, low, middle), torch.where(feasible, middle, high)
    found = best_ratio(draft, target, torch.full((40,), count))
    assert torch.allclose(found, high, atol=1e-13, rtol=0)
    assert bool((gap(draft, target, found, count) >= -1e-15).all())
    assert best_ratio(draft, target, torch.ones(40)).tolist() == [1.0] * 40
    assert best_ratio(draft, draft, torch.full((40,), count)).tolist() == pytest.approx([1.0] * 40, abs=1e-12)


def test_k_seqs_ratio_does_not_depend_on_the_batch_to_the_last_digit():
    draft, target = laws(9, 40_000, seed=1)
    counts = torch.tensor([3, 2, 3, 1, 3, 2, 3, 3, 2])
    together = best_ratio(draft, target, counts)
    for rows in ([0], [4], [1, 8], [2, 3, 5], list(range(8))):
        assert torch.equal(best_ratio(draft[rows], target[rows], counts[rows]), together[rows])


def test_k_seqs_ratio_takes_few_evaluations(monkeypatch):
    from transformers_egrm.modeling import draft_rules_egrm

    real, asked = draft_rules_egrm._row_sums, []
    monkeypatch.setattr(draft_rules_egrm, "_row_sums", lambda values: (asked.append(1), real(values))[1])
    draft, target = laws(1, 20_000, seed=2)
    best_ratio(draft, target, torch.tensor([3]))
    assert len(asked) <= 20
