"""Chains decoded from drafts: the same texts at temperature 0, the same distribution of rewards elsewhere, in checkpoints too."""

import gc
import json

import pytest
import torch
from cli_tools import egrm, read_jsonl, save_components, write_jsonl
from engine_fixtures import TinyJudge, some_prompts, talkative_generator, tiny_inputs, tiny_task
from tiny import GENERATORS, tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.errors_egrm import ConfigError, UnsupportedModelError
from transformers_egrm.modeling.judge_values_egrm import Status
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


LENGTHS = (20, 7, 13)
LONG = {"path": "long", "num_chains": 2, "max_chain_tokens": 12, "draft_length": 4}
LEANINGS = {"7": 7.0, "\n": 6.0, "": 6.5}  # greedy chains that state a verdict and end
SAME = ("rewards", "verdicts", "statuses", "new_tokens", "prefill_tokens", "routes")


def same_judgement(one, other) -> bool:
    return all(torch.equal(one[name].nan_to_num(-1.0), other[name].nan_to_num(-1.0)) for name in SAME)


@pytest.mark.parametrize("family", GENERATORS)
def test_greedy_chains_are_the_same_with_and_without_drafts(family):
    kinds = {"layer_types": ["full_attention"]} if family == "gemma3" else {}
    judge = TinyJudge(tiny_generator(family), draft=tiny_generator(family, seed=1, num_hidden_layers=1, **kinds))
    inputs = tiny_inputs(tiny_task(VerdictSpace.pairwise()), some_prompts([9, 8, 12, 11]), orders=2)
    options = LONG | {"chain_temperature": 0.0, "num_chains": 2}
    plain = judge.judge(inputs, **options)
    chains = judge.decoded[:4]
    assert plain["draft_rounds"].tolist() == [0, 0]
    for drafting in ("model", "layers", "ngram"):
        judge.decoded.clear()
        drafted = judge.judge(inputs, drafting=drafting, **options)
        assert judge.decoded[:4] == chains
        assert same_judgement(drafted, plain)
        # Every pass writes at least one token, and the prompt's own pass writes the first.
        assert drafted["draft_tokens"].tolist() == (drafted["new_tokens"] - 2).tolist()
        assert bool((drafted["draft_rounds"] <= drafted["draft_tokens"]).all())
        assert bool((drafted["draft_rounds"] > 0).all())
        kept = drafted["draft_kept"]
        assert bool((kept.diff(dim=1) <= 0).all())
        # A pass writes what it kept of a draft, and one token of its own unless the text ends before.
        own = drafted["draft_tokens"] - kept.sum(1)
        assert bool(((own >= 0) & (own <= drafted["draft_rounds"])).all())
        assert bool((drafted["flops"] > 0).all())


@pytest.mark.parametrize("selection", ["vote", "likelihood", "scorer"])
@pytest.mark.parametrize("pooling", [None, "last", "mean"])
def test_every_way_to_choose_sees_the_same_chains(selection, pooling):
    generator = talkative_generator(LEANINGS)
    judge = TinyJudge(generator, state_pooling=pooling, draft=talkative_generator(LEANINGS, seed=1))
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    options = LONG | {"chain_temperature": 0.0, "selection": selection}
    plain = judge.judge(inputs, **options)
    states = [part.clone() for part in judge.states]
    judge.states.clear()
    drafted = judge.judge(inputs, drafting="model", verification="md_bv_plus", **options)
    assert same_judgement(drafted, plain)
    assert bool((drafted["statuses"] == Status.OK).any())
    assert torch.allclose(drafted["chain_scores"].nan_to_num(-1), plain["chain_scores"].nan_to_num(-1), atol=1e-4)
    for ours, theirs in zip(judge.states, states, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-3)


def two_sample_p_value(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of counts that differ at least so much, if both come from one distribution."""
    seen = (one + other) >= 10
    counts = [[*part[seen].tolist(), int(part[~seen].sum())] for part in (one, other)]
    kept = [(a, b) for a, b in zip(*counts, strict=True) if a + b]
    total_one, total_other = (sum(part) for part in zip(*kept, strict=True))
    share = total_one / (total_one + total_other)
    statistic = sum(
        (a - share * (a + b)) ** 2 / (share * (a + b)) + (b - (1 - share) * (a + b)) ** 2 / ((1 - share) * (a + b))
        for a, b in kept
    )
    half = torch.tensor([(len(kept) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(1 - torch.special.gammainc(half[0], half[1]))


def histogram(judge: TinyJudge, items: int, **options) -> torch.Tensor:
    """How often each verdict, or none, was given to one prompt under different item ids."""
    inputs = tiny_inputs(tiny_task(), some_prompts([9]) * items, item_ids=range(items))
    output = judge.judge(inputs, **LONG | {"num_chains": 1, "chain_temperature": 1.0, **options})
    verdicts = torch.where(output["statuses"] == Status.OK, output["verdicts"], 11)
    return torch.bincount(verdicts, minlength=12)


@pytest.mark.parametrize(("drafting", "verification"), [("model", "spectr_gbv"), ("layers", "md_bv_plus")])
def test_rewards_follow_the_same_distribution_with_and_without_drafts(drafting, verification):
    leanings = {"3": 6.5, "7": 7.0, "8": 7.0, "1": 6.0, "": 7.5}
    judge = TinyJudge(talkative_generator(leanings), draft=talkative_generator(leanings | {"7": 7.5}, seed=1))
    plain = histogram(judge, 400, seed=0)
    drafted = histogram(judge, 400, seed=1, drafting=drafting, verification=verification, num_drafts=3)
    assert int((plain > 10).sum()) >= 4  # several verdicts do occur
    assert two_sample_p_value(plain, drafted) > 1e-3
    other = TinyJudge(talkative_generator(leanings | {"3": 8.0}))
    assert two_sample_p_value(plain, histogram(other, 400, seed=2)) < 1e-3  # and the test can tell


def test_an_item_has_the_same_drafted_chains_alone_and_among_others():
    judge = TinyJudge(talkative_generator(LEANINGS), draft=talkative_generator(LEANINGS, seed=1))
    prompts = some_prompts(LENGTHS)
    together = judge.judge(tiny_inputs(tiny_task(), prompts, item_ids=[5, 6, 7]), drafting="model", **LONG)
    for index, prompt in enumerate(prompts):
        alone = judge.judge(tiny_inputs(tiny_task(), [prompt], item_ids=[5 + index]), drafting="model", **LONG)
        for name in ("rewards", "new_tokens", "draft_rounds", "draft_tokens", "draft_kept"):
            assert torch.equal(alone[name].nan_to_num(-1), together[name][index : index + 1].nan_to_num(-1)), name


def test_a_context_too_short_for_drafts_is_decoded_without():
    generator = tiny_generator("llama", max_position_embeddings=40)
    judge, inputs = TinyJudge(generator), tiny_inputs(tiny_task(), some_prompts([20, 7]))
    options = LONG | {"chain_temperature": 0.0, "drafting": "layers"}
    output = judge.judge(inputs, **options)  # 20 + 4 + 12 + 4 are just 40, one more is not
    assert bool((output["draft_rounds"] > 0).all())
    tight = judge.judge(inputs, **options | {"draft_length": 5})
    assert (tight["draft_rounds"] > 0).tolist() == [False, True]
    assert same_judgement(tight, output)


def test_deadlines_hold_for_drafted_chains():
    judge, inputs = TinyJudge(tiny_generator("llama")), tiny_inputs(tiny_task(), some_prompts([9]))
    output = judge.judge(inputs, **LONG | {"max_chain_tokens": 400, "timeout_s": 0.2, "drafting": "ngram"})
    assert output["statuses"].tolist() == [Status.TIMEOUT]
    assert int(output["new_tokens"]) < 800


def test_auto_drafts_only_where_a_trial_says_that_it_saves_time(monkeypatch):
    from transformers_egrm.modeling import draft_chains_egrm

    options = LONG | {"chain_temperature": 0.0, "drafting": "auto"}
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    plain = TinyJudge(tiny_generator()).judge(inputs, **options)
    assert plain["draft_rounds"].tolist() == [0, 0, 0]  # nobody can draft
    for seconds, drafts in (([1.0, 2.0], True), ([2.0, 1.0], False)):
        trials = iter(seconds)
        ran = []

        def timed(run, trials=trials, ran=ran):
            run()  # both ways do run
            ran.append(run.__name__)
            return next(trials)

        monkeypatch.setattr(draft_chains_egrm, "_seconds_of", timed)
        judge = TinyJudge(tiny_generator(), draft=tiny_generator(seed=1, num_hidden_layers=1))
        output = judge.judge(inputs, **options)
        assert (output["draft_rounds"] > 0).tolist() == [drafts] * 3
        assert ran == ["drafted", "plain"]
        assert same_judgement(output, plain)
        judge.judge(inputs, **options)  # the trial is made once


def test_the_trial_of_auto_belongs_to_the_draft_itself_and_not_to_its_address(monkeypatch):
    from transformers_egrm.modeling import draft_chains_egrm

    ran = []
    monkeypatch.setattr(draft_chains_egrm, "_seconds_of", lambda run: float(len(ran.append(run.__name__) or ran)))
    options = LONG | {"chain_temperature": 0.0, "drafting": "auto"}
    inputs, generator = tiny_inputs(tiny_task(), some_prompts(LENGTHS)), tiny_generator()
    for number in (1, 2):  # a draft that replaces a dead one may get its address
        draft = tiny_generator(seed=number, num_hidden_layers=1)
        TinyJudge(generator, draft=draft).judge(inputs, **options)
        TinyJudge(generator, draft=draft).judge(inputs, **options)
        assert ran == ["drafted", "plain"] * number
        trials = Backbone(generator).fact("trials of drafts", dict)
        assert list(trials) == [draft]
        del draft, trials
        gc.collect()
    assert len(Backbone(generator).fact("trials of drafts", dict)) == 0


# -- options and checkpoints -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"drafting": "oracle"}, "one of none, auto, model, layers, ngram"),
        ({"verification": "magic"}, "one of sd, spectr"),
        ({"num_drafts": 0}, "an integer >= 1, or None"),
        ({"draft_length": 0}, "an integer >= 1"),
        ({"drafting": "ngram", "num_drafts": 2}, "all alike"),
        ({"drafting": "layers", "verification": "bv", "num_drafts": 2}, "md_bv"),
        ({"drafting": "layers", "decoder": "expand"}, "after one prompt"),
    ],
)
def test_an_option_of_drafting_out_of_range_says_what_it_should_be(setting, expected):
    with pytest.raises(ConfigError, match=expected):
        EGRMConfig().judge_options(**setting)


def test_what_cannot_be_drafted_is_refused_before_anything_runs():
    model = EGRMRewardModel.from_components(tiny_generator(), tokenizer=tiny_tokenizer())
    inputs = model.processor({"prompt": "What is 2 + 3?", "response": "5"})
    with pytest.raises(ConfigError, match="attach_draft"):
        model.judge(inputs, drafting="model")
    with pytest.raises(ConfigError, match="Use 1 to 2"):
        model.judge(inputs, drafting="layers", draft_layers=3)
    with pytest.raises(ConfigError, match="1500 tokens"):
        model.attach_draft(tiny_generator(vocab_size=1500))
    with pytest.raises(ConfigError, match="1500 tokens"):
        EGRMRewardModel.from_components(
            tiny_generator(), tokenizer=tiny_tokenizer(), draft=tiny_generator(vocab_size=1500)
        )
    model.generator.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedModelError, match="drafting='none'"):
        model.judge(inputs, drafting="ngram")


def test_a_draft_is_part_of_the_checkpoint_and_changes_no_greedy_reward(tmp_path):
    torch.manual_seed(0)
    draft = tiny_generator("qwen3", seed=2, num_hidden_layers=1)
    model = EGRMRewardModel.from_components(
        tiny_generator("llama"), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), draft=draft,
        max_chain_tokens=12, chain_temperature=0.0,
    )  # fmt: skip
    assert model.draft is draft
    assert model.config.judge_options().drafting == "model"
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["draft_config"]["model_type"] == "qwen3"
    assert "| draft | qwen3 |" in (tmp_path / "README.md").read_text()
    again, report = EGRMRewardModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    inputs = model.processor({"prompt": "What is 2 + 3?", "response": "The answer is 5."})
    drafted, plain = again.judge(inputs, path="long"), model.judge(inputs, path="long", drafting="none")
    assert int(drafted["draft_rounds"]) > 0
    assert int(plain["draft_rounds"]) == 0
    assert torch.equal(drafted["new_tokens"], plain["new_tokens"])
    assert torch.equal(drafted["rewards"].nan_to_num(-1), plain["rewards"].nan_to_num(-1))


def test_a_draft_attached_later_drafts_from_then_on():
    model = EGRMRewardModel.from_components(tiny_generator(), tokenizer=tiny_tokenizer(), max_chain_tokens=8)
    assert model.config.judge_options().drafting == "none"
    model.attach_draft(tiny_generator(seed=1, num_hidden_layers=1))
    inputs = model.processor({"prompt": "What is 2 + 3?", "response": "5"})
    assert int(model.judge(inputs, path="long")["draft_rounds"]) > 0


def test_a_judge_generates_with_a_draft_too():
    model = EGRMRewardModel.from_components(tiny_generator(eos_token_id=None), tokenizer=tiny_tokenizer())
    ids = torch.arange(5, 15)[None]
    greedy = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False, draft_layers=2), greedy)


# -- the command line --------------------------------------------------------------------------------------------------------


def test_the_command_line_drafts_and_reports_what_it_brought(tmp_path, capsys):
    save_components(tmp_path)
    tiny_generator(seed=1, num_hidden_layers=1).save_pretrained(tmp_path / "draft")
    tiny_tokenizer().save_pretrained(tmp_path / "draft")
    built = ("--probe-vocabulary", "verdict", "--max-chain-tokens", "6", "--chains", "2", "--chain-temperature", "0")
    assert egrm("build", tmp_path / "lm", "-o", tmp_path / "plain", *built) == 0
    assert egrm("build", tmp_path / "lm", "-o", tmp_path / "drafted", "--draft", tmp_path / "draft", *built) == 0
    records = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "What is 2 + 3?", "response": str(n)} for n in range(3)])
    results = {}
    for name, judge, words in (
        ("plain", "plain", ()),
        ("attached", "plain", ("--draft", tmp_path / "draft", "--verification", "md_bv_plus")),
        ("own", "drafted", ("--num-drafts", "2")),
        ("lookup", "plain", ("--drafting", "ngram")),
    ):
        out, summary = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.json"
        options = ("-o", out, "--summary", summary, "--path", "long", *words)
        assert egrm("score", tmp_path / judge, records, *options) == 0
        results[name] = read_jsonl(out), json.loads(summary.read_text())
    rows, summary = results["plain"]
    assert summary["block_efficiency"] is None
    assert summary["acceptance_by_position"] == []
    for name in ("attached", "own", "lookup"):
        drafted, counted = results[name]
        assert [row["reward"] for row in drafted] == [row["reward"] for row in rows]
        assert [row["tokens"] for row in drafted] == [row["tokens"] for row in rows]
        passes, tokens = (sum(row[column] for row in drafted) for column in ("draft_rounds", "draft_tokens"))
        assert counted["block_efficiency"] == pytest.approx(tokens / passes)
        assert counted["block_efficiency"] >= 1
        kept = [sum(column) for column in zip(*(row["draft_kept"] for row in drafted), strict=True)]
        assert counted["acceptance_by_position"] == pytest.approx([count / passes for count in kept], abs=1e-4)
    assert "tokens per pass of the generator" in capsys.readouterr().err
    assert egrm("score", tmp_path / "plain", records, "--draft", tmp_path / "encoder") == 1
