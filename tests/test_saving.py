"""What is saved is everything, what is loaded is the same: folders, shards, adapters, quantised and GGUF generators."""

import json
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf
import numpy
import peft
import pytest
import torch
from fresh import measure, run_fresh
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import GENERATORS, tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils.quantization_config import QuantizationConfigMixin

import transformers_egrm  # noqa: F401 (registers the model type)
from transformers_egrm.judge import RewardJudge
from transformers_egrm.modeling.errors_egrm import ConfigError, ModelError, UnsupportedModelError
from transformers_egrm.modeling.hub_card_egrm import MARKER
from transformers_egrm.modeling.hub_saving_egrm import AUTO_MAP
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


SOURCES = {path.name for path in Path(__file__).parent.parent.glob("modeling/*.py")}
RECORDS = [
    {"prompt": "What is 2 + 3?", "response": "The answer is 5."}, {"prompt": "Rate the reply.", "response": "B"},
]  # fmt: skip
IDS = torch.arange(5, 15)[None]


@pytest.fixture(autouse=True)
def one_thread():
    """Bit for bit means the same kernels, and those depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny_model(family: str = "llama", **settings) -> EGRMRewardModel:
    torch.manual_seed(0)
    return EGRMRewardModel.from_components(
        tiny_generator(family), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), **settings
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    tiny_model().save_pretrained(folder)
    return folder


def load(folder: Path, **options) -> Any:
    # Memory-mapped weights are unaligned, and some kernels then add in another order.
    return EGRMRewardModel.from_pretrained(folder, disable_mmap=True, **options)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


# -- folders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GENERATORS)
def test_a_saved_model_comes_back_bit_for_bit(family, tmp_path):
    model = tiny_model(family)
    model.save_pretrained(tmp_path)
    again, report = load(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert same_weights(again, model)
    assert again.task == model.task
    assert again.config.judge_options() == model.config.judge_options()
    assert measure(again, RECORDS) == measure(model, RECORDS)


def test_a_saved_folder_holds_everything_that_is_needed(saved):
    names = {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
    assert names >= SOURCES | {
        "config.json", "generation_config.json", "model.safetensors", "README.md", "processor_config.json",
        "tokenizer.json", "tokenizer_config.json", "scorer_tokenizer/tokenizer.json", "scorer_tokenizer/config.json",
        "decision.json", "decision_template.jinja",
    }  # fmt: skip
    config = json.loads((saved / "config.json").read_text())
    assert config["auto_map"] == AUTO_MAP
    entry = config["custom_pipelines"]["reward-scoring"]
    assert (entry["impl"], entry["pt"]) == ("pipeline_egrm.RewardScoringPipeline", ["AutoModel"])
    for reference in [*AUTO_MAP.values(), entry["impl"]]:
        module, _, name = reference.partition(".")
        assert f"class {name}(" in (saved / f"{module}.py").read_text()


def test_weights_that_are_tied_are_saved_once_and_tied_again(tmp_path):
    tiny_model("qwen3").save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "generator.model.embed_tokens.weight" in names
    assert "generator.lm_head.weight" not in names
    generator = load(tmp_path).generator
    assert generator.lm_head.weight is generator.model.embed_tokens.weight


def test_a_sharded_checkpoint_is_the_same_checkpoint(saved, tmp_path):
    model = load(saved)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    assert same_weights(load(tmp_path), model)


def test_the_last_save_counts_whether_in_one_file_or_in_shards(tmp_path):
    model = tiny_model()
    for shard_size, factor in (("1GB", 2.0), ("40KB", 3.0), ("1GB", 5.0), ("40KB", 7.0)):
        with torch.no_grad():
            model.generator.lm_head.weight.mul_(factor)
        model.save_pretrained(tmp_path, max_shard_size=shard_size)
        assert same_weights(load(tmp_path), model), (shard_size, factor)


def test_a_model_can_be_saved_over_the_folder_it_came_from(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    model = load(tmp_path)
    before = measure(model, RECORDS)
    load(tmp_path).save_pretrained(tmp_path)
    assert measure(load(tmp_path), RECORDS) == before


def test_the_auto_classes_and_what_trainers_pass_find_the_model(saved):
    for auto_class in (AutoModel, AutoModelForSequenceClassification):
        model = auto_class.from_pretrained(saved, num_labels=1)
        assert type(model) is EGRMRewardModel
        assert model.config.num_labels == 1
    processor = AutoProcessor.from_pretrained(saved)
    assert processor.task().to_dict() == model.config.task
    # A trainer reads the reward model's tokenizer from where the model says it came from.
    assert AutoTokenizer.from_pretrained(model.config.name_or_path).get_vocab() == tiny_tokenizer().get_vocab()


def test_the_processor_is_found_where_the_model_was_loaded(saved, tmp_path):
    model = load(saved)
    assert model.config.name_or_path == str(saved)
    assert model._processor is None, "loading weights alone should cost no tokenizer"
    assert model.processor is model.processor
    assert len(model.processor.scorer_tokenizer) == len(tiny_scorer_tokenizer())
    load(saved).save_pretrained(tmp_path)
    assert (tmp_path / "scorer_tokenizer" / "tokenizer.json").exists(), "a re-save must not lose the processor"


def test_a_model_without_processor_saves_and_says_so_when_text_comes(tmp_path):
    EGRMRewardModel.from_components(tiny_generator()).save_pretrained(tmp_path)
    assert not (tmp_path / "processor_config.json").exists()
    with pytest.raises(ConfigError, match="no processor"):
        _ = load(tmp_path).processor


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("change", "field", "values"),
    [
        ({"rubric": "Count the vowels."}, "judge_turn_ids", ("You are the judge of", "Count the vowels.")),
        ({"space": {"kind": "pointwise", "low": 1, "high": 5}}, "space", ("high=10", "high=5")),
    ],
    ids=["rubric", "space"],
)
def test_two_copies_of_the_task_that_differ_are_refused_with_both_values(change, field, values, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    ids = torch.tensor([tiny_tokenizer()("<|im_start|>user", add_special_tokens=False).input_ids])
    load(tmp_path)(ids, path="short")
    edit(tmp_path / "processor_config.json", **change)
    doors = {
        "forward": lambda model: model(ids),
        "processor": lambda model: model.processor,
        "judge": lambda model: model.judge(AutoProcessor.from_pretrained(tmp_path)(RECORDS)),
        "RewardJudge": RewardJudge,
        "save": lambda model: model.save_pretrained(tmp_path / "again"),
    }
    for name, door in doors.items():
        with pytest.raises(
            ConfigError, match=f"two copies of its judging task, and they differ: .*{field} is"
        ) as caught:
            door(load(tmp_path))
        assert all(value in str(caught.value) for value in values), f"{name}: {caught.value}"
    # The way that the message names.
    model = load(tmp_path)
    model.processor = AutoProcessor.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "mended")
    assert measure(load(tmp_path / "mended"), RECORDS) == measure(model, RECORDS)
    assert load(tmp_path / "mended").processor.task().to_dict() == model.config.task


@pytest.mark.parametrize("task", [5, {"space": {"kind": "binary"}}], ids=str)
def test_a_broken_task_in_a_folder_is_a_config_error(task, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    edit(tmp_path / "config.json", task=task)
    with pytest.raises(ConfigError, match="task"):
        load(tmp_path)


def test_generation_settings_survive_for_the_generator_too(tmp_path):
    model = tiny_model()
    model.generation_config.eos_token_id = [2, 9]
    model.generation_config.max_new_tokens = 3
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.generation_config.eos_token_id == again.generator.generation_config.eos_token_id == [2, 9]
    assert again.generate(IDS, do_sample=False).shape[1] <= 13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtype_is_the_generators_and_never_the_scorers(dtype, saved, tmp_path):
    whole, narrow = load(saved), load(saved, dtype=dtype)
    assert {parameter.dtype for parameter in narrow.generator.parameters()} == {dtype}
    assert same_weights(narrow.scorer, whole.scorer)
    narrow.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.dtype == dtype
    assert same_weights(again, narrow)
    assert measure(again, RECORDS) == measure(narrow, RECORDS)


def test_a_head_that_the_checkpoint_lacks_is_initialised_and_reported(tmp_path, caplog):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    without = {name: value for name, value in weights.items() if "score_head" not in name}
    save_file(without, tmp_path / "model.safetensors", {"format": "pt"})
    with caplog.at_level(logging.WARNING, "transformers"):
        again, report = load(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {"scorer.score_head.weight", "scorer.score_head.bias"}
    assert torch.equal(again.scorer.score_head.bias, torch.zeros(1))
    assert 0.005 < again.scorer.score_head.weight.std().item() < 0.05, "initializer_range is 0.02"
    assert same_weights(again.generator, model.generator)


def without_tensors(folder: Path, *parts: str) -> set[str]:
    """Drops the tensors whose names contain a part from a saved file; their names."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not any(part in name for part in parts)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return weights.keys() - kept.keys()


@pytest.mark.parametrize(
    "dropped",
    [
        "generator.model.layers.1.mlp.up_proj",
        "generator.model.norm",
        "scorer.encoder.encoder.layer.0.attention.self.key",
    ],
)
@pytest.mark.parametrize("auto_class", [EGRMRewardModel, AutoModel, AutoModelForSequenceClassification])
def test_a_checkpoint_that_lacks_tensors_is_refused_by_their_names(auto_class, dropped, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    names = without_tensors(tmp_path, dropped)
    assert names
    with pytest.raises(ModelError) as caught:
        auto_class.from_pretrained(tmp_path)
    assert f"lacks {len(names)} of" in str(caught.value)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize("kind", ["encoder", "generator_state"])
def test_a_trained_scorer_without_its_head_is_refused(kind, tmp_path):
    parts = (
        (tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer()) if kind == "encoder" else (None, tiny_tokenizer())
    )
    model = EGRMRewardModel.from_components(tiny_generator(), *parts, scorer_kind=kind, scorer_trained=True)
    model.save_pretrained(tmp_path)
    names = without_tensors(tmp_path, "score_head", "scorer.norm")
    with pytest.raises(ModelError) as caught:
        load(tmp_path)
    assert all(name in str(caught.value) for name in names)


def test_a_missing_draft_is_refused(tmp_path):
    model = EGRMRewardModel.from_components(
        tiny_generator(), tokenizer=tiny_tokenizer(), draft=tiny_generator(seed=3, num_hidden_layers=1)
    )
    model.save_pretrained(tmp_path)
    without_tensors(tmp_path, "draft.model.layers.0.self_attn")
    with pytest.raises(ModelError, match=r"draft\.model\.layers\.0\.self_attn\.k_proj\.weight"):
        load(tmp_path)


def test_a_tensor_of_another_shape_is_refused_even_where_sizes_may_differ(saved, tmp_path):
    load(saved).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["generator.model.norm.weight"] = torch.ones(7)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"generator\.model\.norm\.weight"):
        load(tmp_path, ignore_mismatched_sizes=True)


@pytest.mark.parametrize("kind", ["encoder", "generator_state"])
def test_a_trained_scorer_is_saved_and_used_again(kind, tmp_path):
    parts = (
        (tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer()) if kind == "encoder" else (None, tiny_tokenizer())
    )
    model = EGRMRewardModel.from_components(tiny_generator(), *parts, scorer_kind=kind)
    nn.init.normal_(model.scorer.score_head.weight)
    model.config.scorer_trained = True
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert same_weights(again.scorer, model.scorer)
    assert again.config.judge_options().selection == "scorer"
    assert measure(again, RECORDS) == measure(model, RECORDS)


# -- devices ------------------------------------------------------------------------------------------------------------


def test_a_device_map_names_the_two_parts(saved):
    model = load(saved, device_map={"": "cpu"})
    assert measure(model, RECORDS) == measure(load(saved), RECORDS)


@pytest.mark.parametrize("part", ["generator", "scorer"])
def test_one_part_may_live_elsewhere(part, saved, tmp_path):
    """Off the device where the other part computes: here on disk, loaded layer by layer when it is needed."""
    placement = {"generator": "cpu", "scorer": "cpu", part: "disk"}
    model = EGRMRewardModel.from_pretrained(saved, device_map=placement, offload_folder=tmp_path)
    assert {parameter.device.type for parameter in getattr(model, part).parameters()} == {"meta"}
    expected, found = measure(load(saved), RECORDS), measure(model, RECORDS)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-6), name


@pytest.mark.filterwarnings("ignore:Attempting to save a model with offloaded modules")
@pytest.mark.parametrize(("family", "num_bytes"), [("llama", 150_000), ("qwen3", 150_000), ("qwen3", 250_000)])
def test_an_automatic_device_map_cuts_anywhere(family, num_bytes, tmp_path):
    model = tiny_model(family)
    model.save_pretrained(tmp_path / "whole")
    split = EGRMRewardModel.from_pretrained(
        tmp_path / "whole", device_map="auto", max_memory={"cpu": num_bytes}, offload_folder=tmp_path / "offloaded"
    )
    assert set(split.hf_device_map.values()) == {"cpu", "disk"}
    expected, found = measure(model, RECORDS), measure(split, RECORDS)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-6), name
    split.save_pretrained(tmp_path / "again")
    assert same_weights(load(tmp_path / "again"), model)


# -- the model card -----------------------------------------------------------------------------------------------------


def test_the_card_says_what_a_reward_is_and_how_it_is_made(saved):
    card = (saved / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert MARKER in card
    for expected in (
        "Verdict space `pointwise`", "Rewards lie in [0, 10]", "| probes (temperatures) | 5 (0.6, 0.7, 0.8, 0.9, 1.0) |",
        "| generator | llama | ", "The scorer is untrained",
    ):  # fmt: skip
        assert expected in card


def test_a_card_is_rendered_anew_until_somebody_writes_one(tmp_path):
    model = tiny_model()
    model.add_model_tags(["maths"])
    model.save_pretrained(tmp_path)
    assert "\n- maths\n" in (tmp_path / "README.md").read_text()
    model.config.set_judging(num_chains=9)
    model.save_pretrained(tmp_path)
    assert "| chains on the long path | 9 of" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("# Mine\n")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "# Mine\n"


def test_a_folder_of_the_builders_machine_is_not_named_as_base_model(tmp_path):
    tiny_generator().save_pretrained(tmp_path / "generator")
    generator = AutoModelForCausalLM.from_pretrained(tmp_path / "generator")
    encoder = tiny_scorer()
    encoder.config.name_or_path = "acme/tiny-bert"
    model = EGRMRewardModel.from_components(generator, encoder, tiny_tokenizer(), tiny_scorer_tokenizer())
    model.save_pretrained(tmp_path / "judge")
    assert load(tmp_path / "judge").config.base_models == ["acme/tiny-bert"]
    assert "base_model:\n- acme/tiny-bert\n" in (tmp_path / "judge" / "README.md").read_text()
    assert str(tmp_path) not in (tmp_path / "judge" / "config.json").read_text()


# -- adapters -----------------------------------------------------------------------------------------------------------


def with_lora(generator: PreTrainedModel, **options):
    torch.manual_seed(1)
    settings = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options)
    return peft.get_peft_model(generator, settings).eval()


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"target_modules": ["q_proj", "v_proj"]}),
        ("qwen3", {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]}),
        ("llama", {"target_modules": ["embed_tokens", "lm_head"]}),
        ("llama", {"target_modules": ["q_proj"], "trainable_token_indices": [7, 8]}),
    ],
    ids=["attention", "whole modules", "embeddings", "single tokens"],
)
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT 0.21 on Transformers 5.24
def test_a_lora_generator_stays_live_and_is_saved_merged(family, options, tmp_path):
    adapted = with_lora(tiny_generator(family), **options)
    model = EGRMRewardModel.from_components(adapted, tokenizer=tiny_tokenizer())
    expected = adapted(IDS).logits
    assert not torch.allclose(tiny_generator(family)(IDS).logits, expected, atol=1e-2), "or this test sees nothing"
    assert torch.equal(model.generator(IDS).logits, expected)
    model.save_pretrained(tmp_path)
    again, report = load(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    torch.testing.assert_close(again.generator(IDS).logits, expected, atol=1e-5, rtol=0)
    assert torch.equal(model.generator(IDS).logits, expected), "saving must not touch the living model"
    assert any(parameter.requires_grad for name, parameter in model.named_parameters() if "lora_" in name)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_disabled_adapter_is_not_saved(tmp_path):
    adapted = with_lora(tiny_generator(), target_modules=["q_proj"], modules_to_save=["input_layernorm"])
    model = EGRMRewardModel.from_components(adapted)
    with adapted.disable_adapter():
        model.save_pretrained(tmp_path)
    assert same_weights(load(tmp_path).generator, tiny_generator())


@pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning", "ignore:Model has .tie_word_embeddings"
)
def test_an_adapter_that_pulls_tied_weights_apart_is_refused(tmp_path):
    model = EGRMRewardModel.from_components(with_lora(tiny_generator("qwen3"), target_modules=["lm_head"]))
    with pytest.raises(ConfigError, match="pulls them apart"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir()), "nothing half written"


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_merging_and_foreign_weights_exclude_each_other(tmp_path):
    model = EGRMRewardModel.from_components(with_lora(tiny_generator(), target_modules=["q_proj"]))
    with pytest.raises(ConfigError, match="got a `state_dict` as well"):
        model.save_pretrained(tmp_path, state_dict=model.state_dict())


def test_an_adapter_on_the_whole_model_is_saved_as_an_adapter_alone(saved, tmp_path):
    model = load(saved)
    try:
        model.add_adapter(peft.LoraConfig(target_modules=r"generator\..*\.q_proj", init_lora_weights=False))
    except ValueError as error:  # Transformers 5.24 wants a PEFT newer than the newest released one
        pytest.skip(str(error))
    expected = model.generator(IDS).logits
    model.save_pretrained(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    again = load(tmp_path)
    assert torch.equal(again.generator(IDS).logits, expected)
    assert again.config.name_or_path == str(saved)
    assert again.processor.task() == again.task


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_prompt_is_no_adapter_of_weights():
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(UnsupportedModelError, match=r"must change weights, got PeftType\.PROMPT_TUNING"):
        EGRMRewardModel.from_components(peft.get_peft_model(tiny_generator(), settings))


# -- quantised generators -----------------------------------------------------------------------------------------------


class RoundedLinear(nn.Module):
    """Eight-bit weights: what a real method does, without its kernels."""

    scale: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.int8), requires_grad=False)
        self.register_buffer("scale", torch.empty(outputs, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))


class RoundingConfig(QuantizationConfigMixin):
    def __init__(self, modules_to_not_convert=None, **kwargs) -> None:
        super().__init__(quant_method="rounding")
        self.modules_to_not_convert = modules_to_not_convert


class RoundingQuantizer(HfQuantizer):
    """Turns every linear layer that it may into a `RoundedLinear`."""

    def _process_model_before_weight_loading(self, model, **kwargs) -> None:
        skipped = self.get_modules_to_not_convert(
            model, self.quantization_config.modules_to_not_convert, model._keep_in_fp32_modules
        )
        self.converted = [
            name for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and should_convert_module(name, skipped)
        ]  # fmt: skip
        if self.pre_quantized:
            self._replace(model)

    def _replace(self, model, fill: bool = False) -> None:
        for name in self.converted:
            old: Any = model.get_submodule(name)
            new = RoundedLinear(old.in_features, old.out_features)
            if fill:
                new.scale.copy_(old.weight.detach().abs().amax(1, keepdim=True) / 127)
                new.weight.data.copy_((old.weight.detach() / new.scale).round())
            else:
                new = new.to(old.weight.device)
            model.set_submodule(name, new)

    def _process_model_after_weight_loading(self, model, **kwargs):
        if not self.pre_quantized:
            self._replace(model, fill=True)
        return model

    def is_serializable(self) -> Any:
        return True

    @property
    def is_trainable(self) -> Any:
        return False


@pytest.fixture
def rounding(monkeypatch):
    monkeypatch.setitem(AUTO_QUANTIZATION_CONFIG_MAPPING, "rounding", RoundingConfig)
    monkeypatch.setitem(AUTO_QUANTIZER_MAPPING, "rounding", RoundingQuantizer)


def rounded(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, RoundedLinear)}


def test_quantising_a_checkpoint_leaves_scorer_and_heads_alone(rounding, saved, tmp_path):
    model = load(saved, quantization_config=RoundingConfig())
    assert len(rounded(model)) == 3 * 7
    assert not rounded(model.scorer)
    assert type(model.generator.lm_head) is nn.Linear
    assert same_weights(model.scorer, load(saved).scorer)
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert rounded(again) == rounded(model)
    assert same_weights(again, model)
    assert measure(again, RECORDS) == measure(model, RECORDS)


@pytest.mark.parametrize("skipped", [None, ["lm_head", "model.layers.0"]], ids=["defaults", "a list of its own"])
def test_a_quantised_generator_can_be_built_in(skipped, rounding, tmp_path):
    tiny_generator().save_pretrained(tmp_path / "plain")
    generator = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=RoundingConfig(modules_to_not_convert=skipped), disable_mmap=True
    )
    model = EGRMRewardModel.from_components(generator, tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer())
    assert len(rounded(model)) == (21 if skipped is None else 14)
    model.save_pretrained(tmp_path / "judge")
    again = load(tmp_path / "judge")
    assert rounded(again) == rounded(model)
    assert measure(again, RECORDS) == measure(model, RECORDS)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_on_quantised_weights_is_saved_alone(rounding, tmp_path):
    tiny_generator().save_pretrained(tmp_path / "plain")
    generator = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=RoundingConfig(modules_to_not_convert=["q_proj"])
    )
    adapted = with_lora(generator, target_modules=["q_proj"])
    model = EGRMRewardModel.from_components(adapted)
    with pytest.raises(ConfigError, match=r"quantised with rounding\. Save the adapter alone"):
        model.save_pretrained(tmp_path / "judge")
    adapted.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


# -- GGUF ---------------------------------------------------------------------------------------------------------------


def write_gguf(path: Path, block_type: str) -> None:
    """A tiny random Llama in GGUF form."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1024)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(400)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    rng = numpy.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = rng.normal(0, 0.2, shape).astype(numpy.float32)
        if len(shape) == 1:
            writer.add_tensor(name, 1 + values)
        else:
            kind = gguf.GGMLQuantizationType[block_type]
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", 400, 32)
    add("output.weight", 400, 32)
    add("output_norm.weight", 32)
    for layer in range(2):
        for name, *shape in (
            ("attn_q", 32, 32), ("attn_k", 16, 32), ("attn_v", 16, 32), ("attn_output", 32, 32), ("ffn_gate", 64, 32),
            ("ffn_up", 64, 32), ("ffn_down", 32, 64), ("attn_norm", 32), ("ffn_norm", 32),
        ):  # fmt: skip
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("block_type", ["Q8_0", "F32"])
def test_a_gguf_generator_is_saved_as_plain_safetensors(block_type, tmp_path):
    write_gguf(tmp_path / "tiny.gguf", block_type)
    generator = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    generator = deepcopy(generator)  # into torch's own memory, aligned as that of weights read from safetensors
    model = EGRMRewardModel.from_components(generator, tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer())
    expected = measure(model, RECORDS)
    model.save_pretrained(tmp_path / "judge")
    assert "quantization_config" not in (tmp_path / "judge" / "config.json").read_text()
    again, report = load(tmp_path / "judge", output_loading_info=True)
    assert not any(report.values()), report
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}
    assert measure(again, RECORDS) == expected
    generator.save_pretrained(tmp_path / "generator")  # without its marker it can be saved alone, too
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "generator", disable_mmap=True)
    assert same_weights(alone, again.generator)


# -- the package absent -------------------------------------------------------------------------------------------------


REMOTE_CODE_ONLY = """
from pathlib import Path
from typing import Any
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor

found = {}
for folder in given["folders"]:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    model = AutoModel.from_pretrained(folder, trust_remote_code=True, disable_mmap=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    assert len(processor.scorer_tokenizer) == given["scorer_tokens"]
    assert config.task == model.config.task == processor.task().to_dict()
    as_reward = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True, num_labels=1)
    inputs = processor(given["records"])
    ids = inputs.input_ids[:, : -len(config.task["judge_turn_ids"])]
    mask = inputs.attention_mask[:, : -len(config.task["judge_turn_ids"])]
    options = {"probe_vocabulary": "verdict", "seed": 3, "max_probe_tokens": 2, "consensus_threshold": 0.0}
    logits = as_reward(ids, mask, **options).logits[:, 0]
    assert torch.equal(logits, as_reward.judge(inputs, **options).rewards)
    found[folder] = {"exact": measure(model, given["records"]), "mapped": measure(as_reward, given["records"])}
    for target, options in given["save"]:
        model.save_pretrained(target, **options)
assert not [name for name in sys.modules if name.split(".")[0] == "transformers_egrm"]
print(json.dumps(found))
"""


TOKENIZER_ALONE = """
from transformers import AutoTokenizer, PreTrainedTokenizerFast

sizes = [len(AutoTokenizer.from_pretrained(given["folder"], trust_remote_code=False)),
         len(PreTrainedTokenizerFast.from_pretrained(given["folder"]))]
print(json.dumps(sizes))
"""


@pytest.mark.parametrize("package", [False, True], ids=["absent", "importable"])
def test_the_tokenizer_alone_needs_neither_trust_nor_an_answer(saved, package, tmp_path):
    """Nobody answers on standard input there: what was given is read already, and a question would fail."""
    found = run_fresh(TOKENIZER_ALONE, {"folder": str(saved)}, tmp_path, package=package)
    assert found == [len(tiny_tokenizer())] * 2


def test_without_the_package_a_folder_a_resaved_one_and_a_sharded_one_give_the_same_bits(saved, tmp_path):
    expected = measure(load(saved), RECORDS)
    resaved, sharded = str(tmp_path / "resaved"), str(tmp_path / "sharded")
    given = {"records": RECORDS, "scorer_tokens": len(tiny_scorer_tokenizer())}
    first = given | {"folders": [str(saved)], "save": [[resaved, {}], [sharded, {"max_shard_size": "40KB"}]]}
    found = run_fresh(REMOTE_CODE_ONLY, first, tmp_path)
    assert {path.name for path in Path(resaved).glob("*.py")} == SOURCES
    assert json.loads((Path(resaved) / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert len(list(Path(sharded).glob("model-*.safetensors"))) > 2
    # Loaded by a process that never saw the first folder.
    found |= run_fresh(REMOTE_CODE_ONLY, given | {"folders": [resaved, sharded], "save": []}, tmp_path)
    for folder in (str(saved), resaved, sharded):
        assert found[folder]["exact"] == expected
        for name, values in expected.items():
            assert found[folder]["mapped"][name] == pytest.approx(values, abs=1e-6), (folder, name)
