"""The composite: components taken over as they are, conversations judged from token ids alone, fp32 where it matters."""

import math
from copy import deepcopy
from typing import Any

import peft
import pytest
import torch
from tiny import GENERATORS, tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertForSequenceClassification,
    GPT2Config,
    LlamaConfig,
    LlamaModel,
    T5Config,
)

from transformers_egrm.judge import RewardJudge
from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError, PromptTooLongError, UnsupportedModelError
from transformers_egrm.modeling.judge_values_egrm import Status
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


# Probes that can only be verdicts give random weights something to agree or differ on.
PAD = 2  # `<pad>`
QUICK = {"max_chain_tokens": 4, "num_chains": 2, "max_probe_tokens": 2, "probe_vocabulary": "verdict"}
RECORDS = [
    {"prompt": "What is 2 + 3?", "response": "The answer is 5."},
    {"prompt": "Rate the reply.", "response": "B"},
    {"messages": [
        {"role": "user", "content": "user"}, {"role": "assistant", "content": "think step by step"},
        {"role": "user", "content": "and then?"}, {"role": "assistant", "content": "judge the reply"},
    ]},
]  # fmt: skip


def tiny_model(family: str = "llama", **settings) -> EGRMRewardModel:
    torch.manual_seed(0)
    return EGRMRewardModel.from_components(
        tiny_generator(family), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), **QUICK | settings
    )


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return tiny_model()


def as_trainers_tokenise(records, padding: str) -> dict[str, torch.Tensor]:
    """Chat template of prompt and completion, tokenised without special tokens; padded on a side or inside."""
    tokenizer = tiny_tokenizer()
    rows = []
    for record in records:
        messages = record.get("messages") or [
            {"role": "user", "content": record["prompt"]}, {"role": "assistant", "content": record["response"]},
        ]  # fmt: skip
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        rows.append(tokenizer(text, add_special_tokens=False).input_ids)
    width = max(map(len, rows)) + 1
    ids = torch.full((len(rows), width), PAD)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        where = {"right": range(len(tokens)), "left": range(width - len(tokens), width)}.get(padding)
        where = list(where or [*range(3), *range(width - len(tokens) + 3, width)])
        ids[row, where], mask[row, where] = torch.tensor(tokens), 1
    return {"input_ids": ids, "attention_mask": mask}


# -- forward ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GENERATORS)
def test_token_ids_alone_give_the_rewards_of_the_text_whatever_the_padding(family):
    model = tiny_model(family)
    judged = model.judge(model.processor(RECORDS))
    assert (judged.statuses == Status.OK).all()
    for padding in ("right", "left", "inside"):
        out = model(**as_trainers_tokenise(RECORDS, padding))
        assert out.logits.shape == (3, 1)
        assert out.logits.dtype == torch.float32
        assert torch.equal(out.logits[:, 0], judged.rewards)
        for name in ("consensus", "routes", "statuses", "new_tokens"):
            assert torch.equal(out[name], judged[name]), (padding, name)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0)])
def test_the_order_of_conversations_changes_no_reward(model, order):
    batch = as_trainers_tokenise(RECORDS, "right")
    shuffled = model(**{name: value[list(order)] for name, value in batch.items()}).logits
    assert torch.equal(shuffled, model(**batch).logits[list(order)])


def test_a_row_with_pad_tokens_that_the_mask_keeps_is_read_whole(model):
    batch = as_trainers_tokenise(RECORDS[:1], "right")
    pad = torch.tensor([[PAD]])
    ids, mask = torch.cat([pad, batch["input_ids"]], 1), torch.cat([torch.ones_like(pad), batch["attention_mask"]], 1)
    seen = []
    hook = model.generator.model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    model(ids, mask)
    hook.remove()
    prompt = next(ids for ids in seen if ids.shape[1] > 1)
    assert prompt[0, 0] == PAD


def test_without_a_mask_every_token_counts(model):
    batch = as_trainers_tokenise(RECORDS[:1], "right")
    ids = batch["input_ids"][:, batch["attention_mask"][0].bool()]
    assert torch.equal(model(ids).logits, model(**batch).logits)


def test_options_of_a_judgement_pass_through_forward(model):
    batch = as_trainers_tokenise(RECORDS, "right")
    inputs = model.processor(RECORDS)
    options = {"seed": 5, "consensus": "exact", "reward": "expected", "consensus_threshold": 0.0}
    torch.testing.assert_close(model(**batch, **options).logits[:, 0], model.judge(inputs, **options).rewards)
    with pytest.raises(ConfigError, match=r"Unknown judging option \['cache_position'\]"):
        model(**batch, cache_position=torch.arange(3))


def test_a_missing_verdict_is_nan_and_its_status_says_why(model):
    options = {"probe_vocabulary": "full", "max_probe_tokens": 1, "max_chain_tokens": 1}
    out = model(**as_trainers_tokenise(RECORDS, "right"), **options)
    assert (out.statuses == Status.NO_VERDICT).any()
    assert torch.equal(out.logits[:, 0].isnan(), out.statuses != Status.OK)


def test_a_trainer_may_name_the_reward_of_a_missing_verdict(model, monkeypatch):
    options = {"probe_vocabulary": "full", "max_probe_tokens": 1, "max_chain_tokens": 1}
    batch = as_trainers_tokenise(RECORDS, "right")
    plain = model(**batch, **options)
    monkeypatch.setattr(model.config, "no_verdict_reward", -1.5)
    filled = model(**batch, **options)
    assert bool((plain.statuses == Status.NO_VERDICT).any())
    assert torch.equal(filled.statuses, plain.statuses)
    assert torch.equal(filled.logits, plain.logits.nan_to_num(-1.5))
    for value in (math.nan, math.inf):
        with pytest.raises(ConfigError, match="no_verdict_reward"):
            EGRMConfig(no_verdict_reward=value)


def test_a_row_without_tokens_is_refused(model):
    with pytest.raises(InputError, match="got none in row 1"):
        model(torch.tensor([[5, 6], [7, 8]]), torch.tensor([[1, 1], [0, 0]]))


def test_a_checkpoint_that_judges_pairs_refuses_single_conversations():
    processor = EGRMProcessor(tiny_tokenizer(), space=VerdictSpace.pairwise())
    model = EGRMRewardModel.from_components(tiny_generator(), processor=processor)
    with pytest.raises(ConfigError, match="the checkpoint judges pairwise"):
        model(torch.tensor([[5, 6]]))


def test_a_checkpoint_without_a_task_says_what_to_do():
    model = EGRMRewardModel.from_components(tiny_generator())
    with pytest.raises(ConfigError, match=r"no judging task\. Assign a processor"):
        model(torch.tensor([[5, 6]]))
    with pytest.raises(ConfigError, match="no processor"):
        _ = model.processor


def test_no_gradient_flows_and_training_mode_changes_nothing(model):
    batch = as_trainers_tokenise(RECORDS, "right")
    before = model(**batch).logits
    assert not before.requires_grad
    model.train()
    out = model(**batch)
    with torch.no_grad():
        assert not model(**batch).logits.requires_grad
    assert torch.equal(out.logits, before)
    assert model.training
    model.eval()


def test_a_trainer_that_asks_for_a_gradient_hears_that_there_is_none(model):
    batch = as_trainers_tokenise(RECORDS[:2], "right")
    expected = "no gradient flows through it.*`egrm train`"
    with pytest.raises(ConfigError, match=expected):
        model(**batch, labels=torch.ones(2))
    model.train()
    chosen, rejected = model(**batch, return_dict=True, use_cache=False).logits[:, 0]
    model.eval()
    with pytest.raises(ConfigError, match=expected):
        (-torch.nn.functional.logsigmoid(chosen - rejected)).backward()


def test_what_wrappers_pass_to_every_model_changes_nothing(model):
    batch = as_trainers_tokenise(RECORDS, "right")
    expected = model(**batch)
    out = model(
        **batch, return_dict=True, output_hidden_states=True, output_attentions=None, use_cache=False, labels=None,
        inputs_embeds=None, past_key_values=None, position_ids=batch["attention_mask"].cumsum(-1) - 1,
    )  # fmt: skip
    assert out.keys() == expected.keys()
    assert all(torch.equal(out[name], expected[name]) for name in expected)
    as_tuple = model(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert torch.equal(as_tuple[0], expected.logits)


@pytest.mark.parametrize("name", ["inputs_embeds", "past_key_values"])
def test_what_stands_for_token_ids_is_refused(model, name):
    with pytest.raises(ConfigError, match=rf"judged from their token ids, got \['{name}'\]"):
        model(**as_trainers_tokenise(RECORDS, "right"), **{name: torch.ones(3, 5, 32)})
    with pytest.raises(ConfigError, match=r"of shape \[B, T\], got None"):
        model()
    with pytest.raises(ConfigError, match=r"of shape \[B, T\], got \(2,\)"):
        model(torch.tensor([5, 6]))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT 0.21 on Transformers 5.24
def test_pefts_wrapper_of_a_classifier_gives_the_same_rewards():
    """`PeftModelForSequenceClassification` passes every keyword of a classifier, most of them as None."""
    model = tiny_model()
    batch = as_trainers_tokenise(RECORDS, "right")
    expected = model(**batch).logits
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["q_proj"])  # its weights begin as the identity
    wrapped = peft.get_peft_model(model, settings).eval()
    assert type(wrapped) is peft.PeftModelForSequenceClassification
    assert torch.equal(wrapped(**batch).logits, expected)
    with pytest.raises(ConfigError, match="Labels have no use here"):
        wrapped(**batch, labels=torch.ones(3))


def test_text_without_a_turn_of_the_template_is_warned_about_once():
    model = tiny_model()
    plain = tiny_tokenizer()("What is 2 + 3? The answer is 5.", return_tensors="pt").input_ids
    with pytest.warns(UserWarning, match="shows no turn of the generator's chat template"):
        model(plain)
    model(plain)  # warnings are errors here: the second time passes in silence
    tiny_model()(**as_trainers_tokenise(RECORDS, "inside"))


def test_a_template_of_plain_words_has_turns_too():
    tokenizer = tiny_tokenizer(chat_template=False)
    model = EGRMRewardModel.from_components(tiny_generator(), tokenizer=tokenizer, **QUICK)
    messages = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]
    text = tokenizer.apply_chat_template(messages, chat_template=model.processor.chat_template, tokenize=False)
    model(tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids)
    with pytest.warns(UserWarning, match="shows no turn"):
        model(tokenizer("2 + 3? 5", return_tensors="pt").input_ids)


# -- room in the context ------------------------------------------------------------------------------------------------


def test_chains_that_fill_the_context_are_refused_and_long_ones_shorten_the_prompts_that_fit(model):
    batch, inputs = as_trainers_tokenise(RECORDS, "right"), model.processor(RECORDS)
    with pytest.raises(ConfigError, match=r"`max_chain_tokens` of 1024 leaves no room .* context of 1024"):
        model.judge(inputs, max_chain_tokens=1024)
    with pytest.raises(ConfigError, match="`max_probe_tokens` of 2000 leaves no room"):
        model.judge(inputs, max_probe_tokens=2000, path="short")
    # The longest prompt, its longer suffix and the chain fill the context exactly, then exceed it by one.
    task = inputs.task
    lengths = inputs.attention_mask.sum(-1) + max(len(task.short_suffix_ids), len(task.long_suffix_ids))
    room = 1024 - int(lengths.max())
    assert (model.judge(inputs, max_chain_tokens=room, path="short").statuses == Status.OK).all()
    model.judge(inputs.item(int(lengths.argmin())), max_chain_tokens=room + 1, path="short", num_chains=1)
    with pytest.raises(PromptTooLongError, match=rf"room for .* beside the answer \({room + 1}\)"):
        model.probe(inputs, max_chain_tokens=room + 1)
    out = model(**batch, max_chain_tokens=room + 1, consensus_threshold=0.0)
    assert out.statuses.eq(Status.TOO_LONG).tolist() == lengths.eq(lengths.max()).tolist()
    assert torch.equal(out.logits[:, 0].isnan(), out.statuses == Status.TOO_LONG)


def test_positions_that_a_generator_does_not_know_are_never_asked_for():
    """GPT-2 looks positions up in a table of 64: one more is an IndexError."""
    config = GPT2Config(
        vocab_size=400, n_embd=32, n_layer=2, n_head=4, n_positions=700, bos_token_id=0, eos_token_id=4
    )  # fmt: skip
    torch.manual_seed(0)
    generator = AutoModelForCausalLM.from_config(config).eval()
    model = EGRMRewardModel.from_components(generator, tokenizer=tiny_tokenizer(), max_chain_tokens=4)
    short, long = {"prompt": "2?", "response": "2"}, {"prompt": "2?", "response": "2" * 40}
    item = model.processor.encode(short)
    room = 700 - len(item.prompts[0]) - max(len(item.task.short_suffix_ids), len(item.task.long_suffix_ids))
    assert room > 0
    judge = RewardJudge(model, max_chain_tokens=room, path="long", num_chains=1, batch_size=2)
    results = judge([short, long])
    assert [result.status == "too_long" for result in results] == [False, True]
    assert results[0].status in ("ok", "no_verdict"), results[0].error


# -- from_components ----------------------------------------------------------------------------------------------------


def test_components_are_taken_over_untouched():
    generator, encoder = tiny_generator("qwen3"), tiny_scorer()
    before = {name: value.clone() for name, value in generator.state_dict().items()}
    model = EGRMRewardModel.from_components(generator, encoder, tiny_tokenizer(), tiny_scorer_tokenizer())
    assert model.generator is generator
    assert model.scorer.encoder is encoder
    assert all(torch.equal(value, before[name]) for name, value in generator.state_dict().items())
    assert model.config.generator_config is generator.config
    assert model.config.scorer_config is encoder.config
    assert model.generation_config is generator.generation_config
    assert not model.training
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_settings_reach_the_configuration_and_a_typo_does_not():
    assert tiny_model(consensus_threshold=0.6, scorer_trained=True).config.judge_options().selection == "scorer"
    with pytest.raises(ConfigError, match=r"\['consensus_treshold'\] cannot be set here"):
        tiny_model(consensus_treshold=0.6)
    with pytest.raises(ConfigError, match="'task'"):
        tiny_model(task={})


def test_a_scorer_can_read_the_generators_states_instead():
    model = EGRMRewardModel.from_components(
        tiny_generator(), tokenizer=tiny_tokenizer(), scorer_kind="generator_state", scorer_trained=True, **QUICK
    )
    out = model.judge(model.processor(RECORDS), consensus_threshold=1.0)
    assert out.chain_scores.isfinite().any()
    with pytest.raises(ConfigError, match="generator_state has no encoder"):
        tiny_model(scorer_kind="generator_state")


def test_the_encoder_of_a_classifier_is_enough():
    classifier = BertForSequenceClassification(tiny_scorer().config).to(torch.bfloat16)
    model = EGRMRewardModel.from_components(tiny_generator(), classifier)
    assert model.scorer.encoder is classifier.bert
    assert {parameter.dtype for parameter in model.scorer.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (lambda: LlamaModel(LlamaConfig(vocab_size=400, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                        num_attention_heads=2)),
         "loaded with a LlamaForCausalLM, but was given a LlamaModel"),
        (lambda: torch.nn.Linear(2, 2), "a causal LM of Transformers, got Linear"),
    ],
    ids=["a body without head", "no model at all"],
)  # fmt: skip
def test_what_could_not_be_loaded_again_is_refused(part, expected):
    with pytest.raises(UnsupportedModelError, match=expected):
        EGRMRewardModel.from_components(part())


def test_an_encoder_decoder_is_no_scorer():
    encoder = AutoModel.from_config(T5Config(vocab_size=300, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2))
    with pytest.raises(UnsupportedModelError, match="A scorer needs an encoder"):
        EGRMRewardModel.from_components(tiny_generator(), encoder)


def test_tokenizers_of_other_models_are_refused():
    with pytest.raises(ConfigError, match=r"tokenizer of the generator .* but the generator knows 50"):
        EGRMRewardModel.from_components(tiny_generator(vocab_size=50), tokenizer=tiny_tokenizer())
    with pytest.raises(ConfigError, match=r"tokenizer of the scorer .* but the scorer knows 20"):
        EGRMRewardModel.from_components(
            tiny_generator(), tiny_scorer(vocab_size=20), tiny_tokenizer(), tiny_scorer_tokenizer()
        )
    with pytest.raises(ConfigError, match="An encoder needs its own tokenizer, got none"):
        EGRMRewardModel.from_components(tiny_generator(), tiny_scorer(), tiny_tokenizer())


def test_a_generator_without_pad_token_or_chat_template_judges():
    model = EGRMRewardModel.from_components(
        tiny_generator(pad_token_id=None), tokenizer=tiny_tokenizer(chat_template=False), **QUICK
    )
    together = model.judge(model.processor(RECORDS))
    alone = torch.cat([model.judge(model.processor(record)).rewards for record in RECORDS])
    torch.testing.assert_close(together.rewards, alone, equal_nan=True)


# -- the parts as one model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GENERATORS)
def test_generate_is_the_generators_own(family):
    model: Any = tiny_model(family)
    ids = torch.arange(5, 15)[None]
    model.generation_config.max_new_tokens = 4
    out = model.generate(ids, do_sample=False)
    assert torch.equal(out, model.generator.generate(ids, do_sample=False, max_new_tokens=4))
    assert out.shape[1] <= 14


def test_resizing_the_vocabulary_reaches_every_place_that_knows_its_size():
    model = tiny_model("qwen3")
    model.resize_token_embeddings(410)
    assert model.get_input_embeddings().weight.shape[0] == 410
    assert model.config.generator_config.vocab_size == 410
    assert model.generator.lm_head.weight is model.generator.model.embed_tokens.weight
    assert model.get_output_embeddings() is model.generator.lm_head


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # renamed in Transformers 5.24
def test_gradient_checkpointing_reaches_both_parts_and_changes_no_gradient():
    model = tiny_model()
    ids = torch.arange(5, 15)[None]

    def gradient() -> torch.Tensor:
        model.zero_grad()
        model.generator(ids, labels=ids).loss.backward()
        return model.generator.model.layers[0].self_attn.q_proj.weight.grad.clone()

    before = gradient()
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert model.generator.is_gradient_checkpointing
    assert model.scorer.encoder.is_gradient_checkpointing
    torch.testing.assert_close(gradient(), before)
    model.gradient_checkpointing_disable()
    assert not model.generator.is_gradient_checkpointing


def test_an_attention_implementation_reaches_both_parts():
    model = tiny_model()
    model.set_attn_implementation("eager")
    assert model.generator.config._attn_implementation == "eager"
    assert model.scorer.encoder.config._attn_implementation == "eager"


def test_a_narrowed_model_keeps_its_scorer_in_float32_and_judges():
    model = tiny_model(scorer_trained=True).to(torch.bfloat16)
    assert {parameter.dtype for parameter in model.generator.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.scorer.parameters()} == {torch.float32}
    out = model.judge(model.processor(RECORDS), consensus_threshold=1.0)
    assert out.rewards.dtype == out.chain_scores.dtype == torch.float32
    assert out.consensus.dtype == torch.float64
    assert out.chain_scores[~out.chain_scores.isnan()].isfinite().all()


def test_a_bf16_scorer_would_drift_with_its_batch():
    """The reason for float32: the same text in the same encoder, alone and beside a long neighbour."""
    model = tiny_model()
    tokenizer, scorer = tiny_scorer_tokenizer(), model.scorer
    texts = (["Rate the response."] * 8, ["2 + 3 = 5. " * number for number in range(1, 9)])

    def drift() -> float:
        together, alone = scorer.score_texts(*texts, tokenizer), scorer.score_texts(*texts, tokenizer, strict=True)
        return float((together - alone).abs().max())

    exact = drift()
    torch.nn.Module._apply(scorer.encoder, lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor)
    forward = scorer.encoder.forward
    scorer.encoder.forward = lambda **kwargs: replace_hidden(forward(**kwargs))
    assert exact < 1e-5 < drift()


def replace_hidden(output):
    output.last_hidden_state = output.last_hidden_state.float()
    return output


def test_a_copy_is_a_model_of_its_own(model):
    batch = as_trainers_tokenise(RECORDS, "right")
    before = model(**batch).logits
    copy = deepcopy(model)
    assert torch.equal(copy(**batch).logits, before)
    with torch.no_grad():
        copy.generator.lm_head.weight.normal_()
    assert not torch.equal(copy(**batch).logits, before)
    assert torch.equal(model(**batch).logits, before)


def test_a_model_of_random_weights_has_initialised_heads():
    config = EGRMConfig(generator_config=tiny_generator().config, scorer_kind="generator_state", initializer_range=0.5)
    model = EGRMRewardModel(config)
    assert 0.3 < model.scorer.score_head.weight.std().item() < 0.7
    assert torch.equal(model.scorer.score_head.bias, torch.zeros(1))
    assert torch.equal(model.scorer.norm.weight, torch.ones(32))


def test_any_causal_lm_can_be_the_generator():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=400, n_embd=32, n_layer=1, n_head=2, n_positions=512, bos_token_id=0, eos_token_id=4
    )
    generator = AutoModelForCausalLM.from_config(config)
    model = EGRMRewardModel.from_components(generator, tokenizer=tiny_tokenizer(), **QUICK)
    inputs = model.processor(RECORDS)
    together = model.judge(inputs)
    alone = torch.cat([model.judge(inputs.item(row)).rewards for row in range(3)])
    torch.testing.assert_close(together.rewards, alone, equal_nan=True)
