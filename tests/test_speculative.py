"""Speculative decoding through real models and caches: the same texts where nothing is random, the same law elsewhere."""

from pathlib import Path

import pytest
import torch
from test_verification import MULTI, SINGLE, chi_square_p_value
from tiny import GENERATORS, tiny_generator

from transformers_egrm.export import DECODERS, write_custom_generate
from transformers_egrm.modeling.draft_generate_egrm import (
    SpeculativeOutput,
    drafter_starter,
    generate,
    make_plan,
    speculative_sample,
)
from transformers_egrm.modeling.draft_loop_egrm import Rows, SpeculationPlan, SpeculationStatistics, speculate
from transformers_egrm.modeling.draft_sources_egrm import DraftSource, NgramDrafter, Warp, early_exit
from transformers_egrm.modeling.draft_tree_egrm import Tree, tree_refusal
from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_prefill_egrm import positions_of, prefill
from transformers_egrm.modeling.engine_sampling_egrm import warped_probs, warped_support
from transformers_egrm.modeling.errors_egrm import ConfigError, UnsupportedModelError


FOLDER = Path(__file__).parent.parent / "examples" / "custom_generate" / "speculative"


def padded_batch(rows: int = 3, width: int = 11):
    ids = torch.randint(5, 300, (rows, width), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return ids * mask, mask


def draft_of(family: str, seed: int = 1, **overrides):
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if family == "gemma3" else {}
    return tiny_generator(family, seed=seed, num_hidden_layers=2, **kinds, **overrides)


def spoken(model, ids, mask=None, **options) -> SpeculativeOutput:
    output = generate(model, ids, attention_mask=mask, return_dict_in_generate=True, **options)
    assert isinstance(output, SpeculativeOutput)
    return output


# -- a context that grows by branches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GENERATORS)
def test_branches_give_what_a_plain_pass_over_each_of_them_gives(family):
    ids, mask = padded_batch(2)
    backbone = Backbone(tiny_generator(family))
    generator = torch.Generator().manual_seed(1)
    seen = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]).bool()
    offsets = torch.tensor([0, 1, 2, 1, 2])
    with torch.no_grad():
        tree = Tree(backbone, prefill(backbone, ids, mask)[0], room=2)
        texts = [row[keep.bool()] for row, keep in zip(ids, mask, strict=True)]
        for kept in ([[0, 3, 4], [0, 0, 0]], [[0, 1, 1], [0, 1, 2]], [[0, 3, 0], [0, 3, 4]]):  # window: 8 tokens
            tokens = torch.randint(5, 300, (2, 5), generator=generator)
            hidden = tree.run(tokens, offsets, seen)
            for row in range(2):
                for branch in ([0, 1, 2], [0, 3, 4]):
                    whole = torch.cat([texts[row], tokens[row, branch]])[None]
                    plain = backbone.run(whole, None, positions_of(torch.ones_like(whole)), backbone.new_cache())
                    assert torch.allclose(hidden[row, branch], plain[0, -3:], atol=2e-4)
            counts = torch.tensor([len(set(row)) for row in kept])
            tree.keep(torch.tensor(kept), counts)
            texts = [torch.cat([text, tokens[row, kept[row][: counts[row]]]]) for row, text in enumerate(texts)]
        assert tree.lengths.tolist() == [len(text) for text in texts]


@pytest.mark.parametrize("family", GENERATORS)
@pytest.mark.parametrize(
    ("source", "method"),
    [("other", "spectr_gbv"), ("self", "sd"), ("layers", "md_bv_plus"), ("lookup", "gbv")],
)
def test_at_temperature_zero_the_text_is_that_of_greedy_decoding(family, source, method):
    ids, mask = padded_batch()
    model = tiny_generator(family)
    sources = {
        "other": {"draft_model": draft_of(family)}, "self": {"draft_model": model}, "layers": {"draft_layers": 2},
        "lookup": {"draft_ngram": 3},
    }  # fmt: skip
    greedy = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False)
    options = {"max_new_tokens": 16, "verification": method, "draft_length": 4, **sources[source]}
    assert torch.equal(generate(model, ids, attention_mask=mask, **options), greedy)


@pytest.mark.slow
@pytest.mark.parametrize("family", GENERATORS)
@pytest.mark.parametrize("method", [*SINGLE, *MULTI])
def test_long_greedy_texts_are_those_of_greedy_decoding(family, method):
    ids, mask = padded_batch()
    model = tiny_generator(family)
    greedy = model.generate(ids, attention_mask=mask, max_new_tokens=60, do_sample=False)
    for source in ({"draft_model": draft_of(family)}, {"draft_model": model}, {"draft_layers": 1}, {"draft_ngram": 3}):
        out = generate(model, ids, attention_mask=mask, max_new_tokens=60, verification=method, **source)
        assert torch.equal(out, greedy), source


def test_a_draft_that_is_the_target_is_always_kept_whole():
    ids, mask = padded_batch()
    model = tiny_generator("llama", eos_token_id=None)
    for method, copies in [(m, 1) for m in SINGLE] + [(m, 3) for m in MULTI]:
        found = spoken(
            model, ids, mask, draft_model=model, do_sample=True, top_k=0, max_new_tokens=21, draft_length=4,
            verification=method, num_drafts=copies,
        ).statistics  # fmt: skip
        # After the prompt's own token 20 are left: four rounds of five, in every row.
        assert (found.tokens, found.rounds, found.target_calls) == (60, 12, 4), method
        assert found.block_efficiency == 5
        assert found.acceptance == [1.0] * 4
        assert found.draft_calls == 16


# -- the law --------------------------------------------------------------------------------------------------------------


def exact_law(model, prompt, num_tokens: int, temperature: float, top_p: float) -> torch.Tensor:
    """[V ** num_tokens] of everything plain sampling may write after a prompt [T]."""
    law, contexts = torch.ones(1, dtype=torch.float64), prompt[None]
    size = model.config.vocab_size
    for _ in range(num_tokens):
        with torch.no_grad():
            logits = model(contexts).logits[:, -1].float()
        rows = len(contexts)
        probs = warped_probs(logits, torch.full((rows,), temperature), torch.full((rows,), top_p))
        law = (law[:, None] * probs).flatten()
        contexts = torch.cat([contexts.repeat_interleave(size, 0), torch.arange(size).repeat(rows)[:, None]], 1)
    return law


def p_value_of_speculation(family: str, method: str, copies: int, rows: int, top_p: float = 1.0, **source) -> float:
    small = {"vocab_size": 3, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    model = tiny_generator(family, seed=5, **small)
    if not source:
        source = {"draft_model": draft_of(family, seed=6, **small)}
    prompt, num_tokens = torch.tensor([0, 1, 2, 2, 0, 1, 0]), 5  # beyond a window of 8
    ids = prompt.expand(rows, -1)
    out = generate(
        model, ids, item_ids=range(rows), do_sample=True, temperature=1.5, top_k=0, top_p=top_p, verification=method,
        num_drafts=copies, draft_length=3, max_new_tokens=num_tokens, seed=1, **source,
    )  # fmt: skip
    assert isinstance(out, torch.Tensor)
    written = (out[:, len(prompt) :] * 3 ** torch.arange(num_tokens - 1, -1, -1)).sum(1)
    return chi_square_p_value(
        torch.bincount(written, minlength=3**num_tokens), exact_law(model, prompt, num_tokens, 1.5, top_p)
    )


@pytest.mark.parametrize(("method", "copies"), [("gbv", 1), ("spectr", 3), ("spectr_gbv", 3), ("md_bv_plus", 3)])
def test_sampled_texts_follow_the_targets_own_law(method, copies):
    assert p_value_of_speculation("llama", method, copies, rows=4000) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize(("method", "copies"), [(m, 1) for m in (*SINGLE, *MULTI)] + [(m, 3) for m in MULTI])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_sampled_texts_follow_the_targets_own_law_in_every_family(family, method, copies, top_p):
    assert p_value_of_speculation(family, method, copies, rows=20_000, top_p=top_p) > 1e-4


def test_texts_drafted_by_early_exit_or_lookup_follow_the_same_law():
    assert p_value_of_speculation("qwen3", "spectr_gbv", 2, rows=3000, draft_layers=1) > 1e-3
    assert p_value_of_speculation("gemma3", "gbv", 1, rows=3000, draft_ngram=2) > 1e-3


def test_counting_notices_a_draft_that_is_verified_against_the_wrong_numbers(monkeypatch):
    from transformers_egrm.modeling import draft_loop_egrm

    original = draft_loop_egrm._drafts_of

    def shifted(proposal, support, nodes):  # the most common mistake: positions off by one
        drafts = original(proposal, support, nodes)
        return type(drafts)(
            drafts.tokens, drafts.places, drafts.draft_probs.roll(1, 2), drafts.target_probs, drafts.columns
        )

    monkeypatch.setattr(draft_loop_egrm, "_drafts_of", shifted)
    assert p_value_of_speculation("llama", "sd", 1, rows=4000) < 1e-6


# -- rows -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spectr_gbv", "spectr"])
def test_a_prompt_has_the_same_text_alone_and_in_a_batch(method):
    ids, mask = padded_batch()
    model, draft = tiny_generator("qwen3"), draft_of("qwen3")
    options = {
        "draft_model": draft,
        "do_sample": True,
        "temperature": 0.5,
        "max_new_tokens": 16,
        "verification": method,
    }
    together = generate(model, ids, attention_mask=mask, **options)
    for row in range(3):
        prompt = ids[row, mask[row].bool()][None]
        alone = generate(model, prompt, **options)[0, prompt.shape[1] :]
        whole = together[row, ids.shape[1] :]
        assert torch.equal(alone, whole[: len(alone)])


def test_several_sequences_of_a_prompt_differ_and_depend_on_the_seed_only():
    ids, _ = padded_batch(1)
    model, draft = tiny_generator("llama"), draft_of("llama")
    options = {"draft_model": draft, "do_sample": True, "max_new_tokens": 8, "num_return_sequences": 3}
    first, again, other = (generate(model, ids, seed=seed, **options) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert len({tuple(row) for row in first[:, 11:].tolist()}) == 3
    assert not torch.equal(first, other)


def test_what_is_written_ends_at_its_end_token_and_only_that_is_counted():
    ids, _ = padded_batch(1)
    model = tiny_generator("llama", eos_token_id=None)
    text = generate(model, ids, draft_model=model, max_new_tokens=10)[0, 11:].tolist()
    place = next(i for i in range(2, 6) if text[i] not in text[:i])
    found = spoken(
        model, ids, draft_model=model, max_new_tokens=10, num_drafts=1, eos_token_id=text[place], pad_token_id=0
    )
    assert found.sequences[0, 11:].tolist() == text[: place + 1]
    # One round: the prompt gave the first token, `place` more were written, all of them drafted.
    assert (found.statistics.tokens, found.statistics.rounds) == (place, 1)
    assert found.statistics.kept == (1,) * place + (0,) * (8 - place)
    assert found.statistics.block_efficiency == place


def test_a_budget_cuts_a_block_and_what_is_cut_is_not_counted():
    ids, _ = padded_batch(1)
    model = tiny_generator("llama", eos_token_id=None)
    found = spoken(model, ids, draft_model=model, max_new_tokens=5, num_drafts=1)
    assert found.sequences.shape == (1, 16)
    assert (found.statistics.tokens, found.statistics.rounds) == (4, 1)
    assert found.statistics.kept == (1, 1, 1, 1, 0, 0, 0, 0)


def test_statistics_add_up():
    one = SpeculationStatistics(tokens=6, rounds=2, target_calls=2, draft_calls=4, kept=(2, 1), draft_seconds=1.0)
    other = SpeculationStatistics(tokens=3, rounds=1, target_calls=1, draft_calls=2, kept=(1,), draft_seconds=0.5)
    both = one + other
    assert (both.tokens, both.rounds, both.kept, both.draft_seconds) == (9, 3, (3, 1), 1.5)
    assert both.block_efficiency == 3
    assert both.acceptance == [1.0, pytest.approx(1 / 3)]
    assert SpeculationStatistics().block_efficiency != SpeculationStatistics().block_efficiency  # NaN: nothing ran


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_log_probabilities_and_states_are_those_of_a_plain_pass(family, pooling):
    ids, mask = padded_batch()
    model = tiny_generator(family)
    backbone, source = Backbone(model), DraftSource(model=draft_of(family))
    plan, warp = SpeculationPlan("spectr_gbv", 2, 3), Warp(0.7, 0.95)
    with torch.no_grad():
        prefix, _ = prefill(backbone, ids, mask)
        start = drafter_starter(source, source.backbone(backbone), plan, warp, ids, mask.bool())
        rows = Rows(ids, mask.bool(), torch.arange(3), torch.zeros(3, dtype=torch.int64), 0, [4, *range(5, 60)], 9)
        written = speculate(backbone, prefix, start, plan, warp, rows, want_log_probs=True, pooling=pooling)
        assert bool(written.ended.any())
        for row in range(3):
            prompt = ids[row, mask[row].bool()]
            tokens = written.tokens[row, : written.lengths[row]]
            out = model(torch.cat([prompt, tokens])[None], output_hidden_states=True)
            scores = out.logits[0, len(prompt) - 1 : -1].log_softmax(-1).gather(-1, tokens[:, None]).sum()
            assert float(written.log_probs[row]) == pytest.approx(float(scores), abs=2e-3)
            states = out.hidden_states[-1][0, len(prompt) :]
            expected = states[-1] if pooling == "last" else states.mean(0)
            assert torch.allclose(written.states[row], expected, atol=2e-4)


def test_rows_stop_at_their_deadline_and_rows_without_sound_logits_are_named():
    ids, mask = padded_batch(2)
    model = tiny_generator("llama", eos_token_id=None)
    backbone, source, plan = Backbone(model), DraftSource(ngram=2), SpeculationPlan("sd", 1, 4)
    prefix, _ = prefill(backbone, ids, mask)

    def run(prefix, deadlines):
        start = drafter_starter(source, None, plan, Warp(), ids, mask.bool())
        keys = torch.arange(2), torch.zeros(2, dtype=torch.int64)
        return speculate(backbone, prefix, start, plan, Warp(), Rows(ids, mask.bool(), *keys, 0, [], 8, deadlines))

    with torch.no_grad():
        written = run(prefix, [0.0, float("inf")])
        assert written.late.tolist() == [True, False]
        assert written.lengths.tolist() == [1, 8]
        prefix.hidden[1] = torch.nan
        written = run(prefix, None)
    assert written.broken.tolist() == [False, True]
    assert written.lengths.tolist() == [8, 0]


# -- laws of next tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [50, 2000])
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(0.7, 0.9, 0), (1.3, 1.0, 20), (1.0, 1.0, 0), (0.0, 0.9, 0)]
)
def test_few_columns_hold_the_same_law_as_all(size, temperature, top_p, top_k):
    logits = 3 * torch.randn(6, size, generator=torch.Generator().manual_seed(0))
    rows = torch.full((6,), temperature, dtype=torch.float64), torch.full((6,), top_p, dtype=torch.float64)
    support = warped_support(logits, *rows, top_k)
    limited = logits
    if top_k:
        limited = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    assert torch.allclose(support.everywhere(size), warped_probs(limited, *rows), atol=1e-12)
    if size > 256 and (top_p < 1 or top_k or temperature == 0):
        assert support.columns is not None  # few
        assert support.columns.shape[1] <= 256
    assert torch.equal(support.best(), logits.argmax(-1))
    tokens = torch.randint(size, (6, 40), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(support.at(tokens), warped_probs(limited, *rows).gather(-1, tokens), atol=1e-12)
    numbers = torch.rand(6, 500, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert bool((support.at(support.draw(numbers)) > 0).all())


def test_a_repetition_penalty_sees_what_was_drafted():
    ids, _ = padded_batch(2)
    ids = ids.clamp_min(5)
    for family in ("llama", "gemma3"):
        model = tiny_generator(family, eos_token_id=None)
        greedy = model.generate(ids, max_new_tokens=12, do_sample=False, repetition_penalty=1.5)
        plain = model.generate(ids, max_new_tokens=12, do_sample=False)
        assert not torch.equal(greedy, plain)
        for source in ({"draft_model": draft_of(family)}, {"draft_layers": 2}, {"draft_ngram": 2}):
            assert torch.equal(
                generate(model, ids, max_new_tokens=12, repetition_penalty=1.5, draft_length=4, **source), greedy
            )


# -- sources ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GENERATORS)
def test_an_early_exit_is_the_model_without_its_last_layers_and_leaves_it_alone(family):
    model = tiny_generator(family)
    ids, _ = padded_batch(2)
    with torch.no_grad():
        before = model(ids).logits
        early = early_exit(model, 2)
        deep = model(ids, output_hidden_states=True)
        assert torch.equal(model(ids).logits, before)
        body = model.get_decoder()
        assert (
            torch.allclose(early(ids).logits, model.lm_head(body.norm(deep.hidden_states[2])), atol=1e-4)
            or family == "gemma3"
        )
        assert not torch.allclose(early(ids).logits, before, atol=1e-2)
    assert model.config.num_hidden_layers == 3
    assert early.lm_head.weight is model.lm_head.weight
    assert len(model.get_decoder().layers) == 3


def test_lookup_repeats_what_followed_the_longest_recurring_end():
    drafter = NgramDrafter([[1, 2, 3, 4, 1, 2], [7, 8, 9]], length=3, longest=2)
    proposal = drafter.propose(torch.zeros(2, 1, 3, dtype=torch.float64), None)
    assert proposal.tokens[:, 0].tolist() == [[3, 4, 1], [9, 9, 9]]
    drafter.accept(torch.zeros(2), torch.tensor([2, 0]), torch.tensor([5, 8]))
    assert drafter.texts == [[1, 2, 3, 4, 1, 2, 3, 4, 5], [7, 8, 9, 8]]
    drafter.keep_rows(torch.tensor([1]))
    assert drafter.propose(torch.zeros(1, 1, 3, dtype=torch.float64), None).tokens.tolist() == [[[9, 8, 8]]]


# -- front doors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "num_drafts", "expected"),
    [
        (DraftSource(layers=1), 1, ("bv", 1)),
        (DraftSource(layers=1), 3, ("md_bv_plus", 3)),
        (DraftSource(layers=1), None, ("md_bv_plus", 4)),
        (DraftSource(ngram=2), None, ("sd", 1)),
    ],
)
def test_where_no_method_is_named_the_number_of_drafts_chooses_it(source, num_drafts, expected):
    plan = make_plan(source, None, num_drafts)
    assert (plan.method, plan.num_drafts) == expected
    if not source.is_certain:
        assert SpeculationPlan(num_drafts=plan.num_drafts).method == plan.method
    # It is an ordinary call of that method: the same plan, and the same texts.
    assert plan == make_plan(source, expected[0], num_drafts)
    ids, mask = padded_batch()
    model = tiny_generator("llama")
    options = {"do_sample": True, "max_new_tokens": 8, "num_drafts": num_drafts, "attention_mask": mask}
    by = {"draft_layers": source.layers, "draft_ngram": source.ngram}
    assert torch.equal(
        generate(model, ids, **options, **by), generate(model, ids, verification=expected[0], **options, **by)
    )


@pytest.mark.parametrize("name", DECODERS)
def test_the_committed_folders_are_copies_of_the_source(name, tmp_path):
    written = {path.name: path.read_bytes() for path in write_custom_generate(tmp_path, DECODERS[name])}
    committed = {path.name: path.read_bytes() for path in (FOLDER.parent / name / "custom_generate").glob("*.py")}
    assert committed == written


def test_by_path_and_by_callable_the_text_is_the_same():
    ids, mask = padded_batch()
    model, draft = tiny_generator("llama"), draft_of("llama")
    options = {
        "attention_mask": mask, "draft_model": draft, "num_drafts": 3, "draft_length": 4, "verification": "spectr_gbv",
        "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 0, "max_new_tokens": 10, "seed": 3,
    }  # fmt: skip
    direct = generate(model, ids, **options)
    assert torch.equal(model.generate(ids, custom_generate=speculative_sample, **options), direct)
    by_path = model.generate(ids, custom_generate=str(FOLDER), trust_remote_code=True, **options)
    assert torch.equal(by_path, direct)
    with_numbers = model.generate(ids, custom_generate=speculative_sample, return_dict_in_generate=True, **options)
    assert torch.equal(with_numbers.sequences, direct)
    assert with_numbers.statistics.rounds > 0


def test_the_callable_follows_generates_own_settings():
    ids, mask = padded_batch()
    model, draft = tiny_generator("gemma3"), draft_of("gemma3")
    greedy = model.generate(ids, attention_mask=mask, max_new_tokens=12)
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=12, custom_generate=speculative_sample, draft_model=draft
    )
    assert torch.equal(out, greedy)
    several = model.generate(
        ids[1:], custom_generate=speculative_sample, draft_model=draft, do_sample=True, num_return_sequences=2,
        max_new_tokens=6,
    )  # fmt: skip
    assert several.shape == (4, 17)
    assert not torch.equal(several[0], several[1])


class _Foreign(torch.nn.Module):
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one source"),
        ({"draft_layers": 2, "draft_ngram": 2}, "got 2"),
        ({"draft_model": _Foreign()}, "_Foreign"),
        ({"draft_layers": 3}, "Use 1 to 2"),
        ({"draft_layers": 0}, "draft_layers=0"),
        ({"draft_ngram": 0}, "draft_ngram=0"),
        ({"draft_ngram": 2, "num_drafts": 2}, "all alike"),
        ({"draft_layers": 2, "num_drafts": 0}, "num_drafts=0"),
        ({"draft_layers": 2, "draft_length": 0}, "draft_length=0"),
        ({"draft_layers": 2, "verification": "sd", "num_drafts": 2}, "verification='spectr'"),
        ({"draft_layers": 2, "verification": "magic"}, "Known: sd"),
        ({"draft_layers": 2, "num_beams": 3}, "num_beams"),
        ({"draft_layers": 2, "max_new_tokens": 0}, "max_new_tokens=0"),
        ({"draft_layers": 2, "max_new_tokens": 1020}, "target's context has 1024"),
        ({"draft_layers": 2, "do_sample": True, "temperature": -1.0}, "at least 0"),
        ({"draft_layers": 2, "do_sample": True, "top_p": 0.0}, "in \\(0, 1]"),
        ({"draft_layers": 2, "repetition_penalty": 0.0}, "positive"),
        ({"draft_layers": 2, "min_p": 0.1}, "min_p"),
    ],
)
def test_what_has_no_meaning_here_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        generate(tiny_generator("llama"), torch.tensor([[5, 6]]), **options)


def test_drafts_that_do_not_fit_the_target_are_refused():
    model = tiny_generator("llama")
    with pytest.raises(ConfigError, match="knows 300 tokens and the target 400"):
        generate(model, torch.tensor([[5, 6]]), draft_model=tiny_generator("llama", vocab_size=300))
    short = tiny_generator("llama", max_position_embeddings=32)
    with pytest.raises(ConfigError, match="draft's context has 32"):
        generate(model, torch.tensor([[5, 6]]), draft_model=short, max_new_tokens=30)
    with pytest.raises(ConfigError, match="input_ids"):
        generate(model, draft_layers=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_beams": 2}, ConfigError, "Beams"),
        ({"do_sample": True, "min_p": 0.2}, ConfigError, "MinPLogitsWarper"),
        ({"max_time": 1.0}, ConfigError, "MaxTimeCriteria"),
        ({"cache_implementation": "static"}, UnsupportedModelError, "StaticCache"),
    ],
)
def test_what_generate_prepares_and_drafting_does_not_know_is_refused(options, error, message):
    model = tiny_generator("llama")
    with pytest.raises(error, match=message):
        model.generate(
            torch.tensor([[5, 6]]), custom_generate=speculative_sample, draft_layers=2, max_new_tokens=4, **options
        )


def test_models_without_keys_and_values_in_every_layer_are_refused():
    from transformers import AutoModelForCausalLM, MambaConfig

    mamba = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=400, hidden_size=16, num_hidden_layers=2)).eval()
    assert tree_refusal(Backbone(mamba)) is not None
    with pytest.raises(UnsupportedModelError, match="MambaForCausalLM"):
        generate(mamba, torch.tensor([[5, 6]]), draft_ngram=2, max_new_tokens=4)
    with pytest.raises(UnsupportedModelError, match="MambaForCausalLM"):
        generate(tiny_generator("llama"), torch.tensor([[5, 6]]), draft_model=mamba, max_new_tokens=4)
