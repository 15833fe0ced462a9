"""`EGRMRewardModel`: a generator that judges, a scorer that picks among its chains, one checkpoint."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import PROCESSOR_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, ModelOutput, cached_file
from transformers.utils.hub import create_and_tag_model_card, hf_api

from .configuration_egrm import EGRMConfig, JudgeOptions
from .draft_chains_egrm import draft_source
from .draft_generate_egrm import generate as generate_speculatively
from .draft_sources_egrm import DraftSource
from .engine_backbone_egrm import Backbone
from .engine_flops_egrm import cost_model
from .engine_generate_egrm import generate
from .engine_random_egrm import item_id_of_tokens
from .errors_egrm import ConfigError, InputError, UnsupportedModelError
from .hub_card_egrm import is_rendered, write_card
from .hub_components_egrm import (
    check_vocabulary,
    has_adapter,
    merged_state_dict,
    plain_generator,
    quantization_method,
)
from .judge_long_egrm import deliberate, finish, join_stages
from .judge_scorer_egrm import EGRMScorer, encode_pairs
from .judge_short_egrm import LongItems, ShortStage, probe_prompts
from .judge_values_egrm import EGRMOutput, JudgeInputs, Route, Status
from .processing_egrm import EGRMProcessor
from .verdicts_egrm import JudgeTask


AUTO_MAP = {
    "AutoConfig": "configuration_egrm.EGRMConfig",
    "AutoModel": "modeling_egrm.EGRMRewardModel",
    "AutoModelForSequenceClassification": "modeling_egrm.EGRMRewardModel",
    "AutoProcessor": "processing_egrm.EGRMProcessor",
}
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


@dataclass
class EGRMSequenceOutput(ModelOutput):
    """What `EGRMRewardModel.forward` returns: the shape in which trainers expect a reward model's answer."""

    logits: Tensor | None = None
    """[B, 1] float32, the reward of each conversation; NaN where there is no verdict."""
    consensus: Tensor | None = None
    """[B] float32 in [0, 1]."""
    routes: Tensor | None = None
    """[B] int64, `Route`."""
    statuses: Tensor | None = None
    """[B] int64, `Status`: why a reward is NaN."""
    new_tokens: Tensor | None = None
    """[B] int64, tokens sampled for the conversation."""


class EGRMRewardModel(PreTrainedModel, GenerationMixin):
    """A generative reward model: judges with short verdicts, and thinks only when they disagree.

    Args:
        config: Both components' configurations and the judging defaults.

    Example:
        ```python
        model = EGRMRewardModel.from_components(generator, encoder, tokenizer, encoder_tokenizer)
        inputs = model.processor({"prompt": "What is 2 + 3?", "response": "5"})
        model.judge(inputs).rewards
        ```

    Source:
        https://huggingface.co/papers/2604.10072
    """

    config: EGRMConfig
    generator: PreTrainedModel
    scorer: EGRMScorer | None
    draft: PreTrainedModel | None
    base_model_prefix = "egrm"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # It attends to nothing itself; its components answer for themselves.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    # The first name also keeps every quantisation method away from the scorer, the second is for reduced precision.
    _keep_in_fp32_modules = ["scorer"]  # noqa: RUF012 (the base class declares it so)
    _keep_in_fp32_modules_strict = ["scorer"]  # noqa: RUF012

    def __init__(self, config: EGRMConfig) -> None:
        super().__init__(config)
        self.generator = AutoModelForCausalLM.from_config(config.generator_config)
        self.scorer = EGRMScorer(config) if config.has_scorer else None
        self.draft = None if config.draft_config is None else AutoModelForCausalLM.from_config(config.draft_config)
        self._backbone: Backbone | None = None
        self._processor: EGRMProcessor | None = None
        self._loading_options: dict[str, Any] = {}
        self.post_init()

    @classmethod
    def from_components(
        cls,
        generator: nn.Module,
        scorer: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        scorer_tokenizer: PreTrainedTokenizerBase | None = None,
        processor: EGRMProcessor | None = None,
        *,
        draft: PreTrainedModel | None = None,
        **settings: Any,
    ) -> "EGRMRewardModel":
        """Build a reward model around existing models, which it takes over: weights are not copied.

        Args:
            generator: A causal LM: plain, quantised, read from GGUF, or a PEFT model, whose adapter stays live.
            scorer: An encoder. It gets a new, untrained head and is converted to float32.
            tokenizer: The generator's.
            scorer_tokenizer: The encoder's.
            processor: Instead of the two tokenizers: decides verdict space, rubric and truncation too. Without any of
                them the model judges prepared `JudgeInputs` only.
            draft: A small causal LM with the generator's tokenizer. It drafts the chains of thought, whose law and
                rewards stay the same.
            **settings: Fields of `EGRMConfig`, among them `scorer_kind="generator_state"` for a scorer without encoder.

        Returns:
            The model in evaluation mode.

        Raises:
            ConfigError: A field is unknown or out of range, or a tokenizer is missing or belongs to another model.
            UnsupportedModelError: A component cannot be saved and loaded as part of a checkpoint.
        """
        generator = plain_generator(generator)
        encoder: Any = None if scorer is None else scorer.base_model.float()
        parts = {
            "generator_config": generator.config,
            "scorer_config": encoder and encoder.config,
            "draft_config": None if draft is None else plain_generator(draft).config,
        }
        known = {field.name for field in fields(EGRMConfig)} - parts.keys() - {"task", "base_models"}
        if unknown := sorted(settings.keys() - known):
            raise ConfigError(f"{unknown} cannot be set here.", f"Fields that can: {', '.join(sorted(known))}.")
        if encoder is not None and settings.get("scorer_kind", "encoder") != "encoder":
            raise ConfigError("A scorer of kind generator_state has no encoder, got one.", "Leave one of the two out.")
        sources = [part.config.name_or_path for part in (generator, encoder, draft) if part is not None]
        with torch.device("meta"):  # the shell only: its weights are replaced below
            model = cls(
                EGRMConfig(**parts, base_models=[name for name in sources if name and _is_hub_id(name)], **settings)
            )
        _need_class(generator, model.generator)
        model.generator, model.config.generator_config = generator, generator.config
        if model.scorer is not None:
            if encoder is not None:
                _need_class(encoder, model.scorer.encoder)
                model.config.scorer_config = encoder.config
            model.scorer = EGRMScorer(model.config, encoder)
            model._init_weights(model.scorer.score_head)
        if draft is not None:
            shell, draft = model.draft, plain_generator(draft)
            assert shell is not None, "made from its configuration"
            _need_class(draft, shell)
            model.attach_draft(draft)
        model.generation_config, model.config.dtype = generator.generation_config, generator.dtype
        if quantization_method(generator) is not None:
            model._adopt_quantization(generator)
        if processor is not None or tokenizer is not None:
            limit = _longest_prompt(model.config)
            model.processor = processor or EGRMProcessor(tokenizer, scorer_tokenizer, max_prompt_tokens=limit)
        return model.eval()

    def attach_draft(self, draft: PreTrainedModel) -> None:
        """Let a small model draft the chains of thought from now on; it becomes part of the checkpoint.

        Args:
            draft: A causal LM with the generator's tokenizer; its weights are not copied.

        Raises:
            ConfigError: It has another vocabulary.
        """
        draft = plain_generator(draft)
        DraftSource(model=draft).backbone(self.backbone)  # another vocabulary is refused here
        self.draft, self.config.draft_config = draft.eval(), draft.config

    def _adopt_quantization(self, generator: PreTrainedModel) -> None:
        # A checkpoint is quantised as a whole or not at all; modules are named from its root then.
        self.hf_quantizer, self.is_quantized = generator.hf_quantizer, True
        self.quantization_method = generator.quantization_method
        self.config.quantization_config = deepcopy(generator.config.quantization_config)
        for name in ("modules_to_not_convert", "llm_int8_skip_modules"):
            if skipped := getattr(self.config.quantization_config, name, None):
                setattr(self.config.quantization_config, name, [f"generator.{module}" for module in skipped])

    # ------------------------------------------------------------------------------------------------ the components

    def get_input_embeddings(self) -> nn.Module:
        """The generator's input embeddings."""
        return self.generator.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the generator's input embeddings."""
        self.generator.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module | None:
        """The generator's LM head."""
        return self.generator.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the generator's LM head."""
        self.generator.set_output_embeddings(new_embeddings)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the generator's embeddings; arguments as in `PreTrainedModel.resize_token_embeddings`."""
        return self.generator.resize_token_embeddings(*args, **kwargs)

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The generator's own."""
        generator: Any = self.generator
        return generator.prepare_inputs_for_generation(*args, **kwargs)

    @property
    def processor(self) -> EGRMProcessor:
        """The processor that belongs to the model, loaded from its folder or repository when first asked for.

        Assigning one makes its task the model's default.

        Raises:
            ConfigError: There is none; on assignment: a tokenizer is missing or belongs to another model.
        """
        if self._processor is None:
            self._processor = self._load_processor()
        if self._processor is None:
            raise ConfigError(
                "The model has no processor, so that it cannot read text.",
                "Assign one to `model.processor`, or pass tokenizers to `from_components`.",
            )
        return self._processor

    @processor.setter
    def processor(self, processor: EGRMProcessor) -> None:
        check_vocabulary(processor.tokenizer, self.config.get_text_config().vocab_size, "generator")
        if self.scorer is not None and self.scorer.kind == "encoder":
            if processor.scorer_tokenizer is None:
                raise ConfigError("An encoder needs its own tokenizer, got none.", "Pass `scorer_tokenizer` as well.")
            check_vocabulary(processor.scorer_tokenizer, self.scorer.encoder.config.vocab_size, "scorer")
        self.config.task = processor.task().to_dict()
        self._processor = processor

    def _load_processor(self) -> EGRMProcessor | None:
        path, options = self.config.name_or_path, self._loading_options
        hub = {name: value for name, value in options.items() if name != "trust_remote_code"}
        if not path or not cached_file(path, PROCESSOR_NAME, _raise_exceptions_for_missing_entries=False, **hub):
            return None
        return EGRMProcessor.from_pretrained(path, **options)

    # ------------------------------------------------------------------------------------------ loading and saving

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike, *model_args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint; arguments and result as in `PreTrainedModel.from_pretrained`.

        `dtype` is the generator's: the scorer is float32 in any case, and no quantisation touches it.
        """
        options = {name: kwargs[name] for name in _HUB_OPTIONS if kwargs.get(name) is not None}
        options["trust_remote_code"] = bool(kwargs.get("trust_remote_code"))
        loaded = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model._loading_options = options
        model.generator.generation_config = model.generation_config
        return loaded

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride] (the rest is passed on by name)
        self,
        save_directory: str | PathLike,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save everything that makes the checkpoint usable where this package is not installed.

        Besides weights and configuration: the processor with both tokenizers, every source file, the pipeline's entry
        and a model card (unless the folder has one written by hand). A live adapter of the generator is merged in the
        saved weights; to save it alone, save the PEFT model. An adapter on the whole model (`add_adapter`) is saved as
        an adapter, and nothing else.

        Args:
            save_directory: Folder to write, made if absent.
            is_main_process: Whether this process writes; in distributed runs only one does.
            state_dict: Weights to save instead of the model's own; not with a live adapter.
            push_to_hub: Whether to upload what was written.
            **kwargs: As in `PreTrainedModel.save_pretrained`, for example `max_shard_size` and `repo_id`.

        Raises:
            ConfigError: The generator's adapter cannot be merged.
        """
        if getattr(self, "_hf_peft_config_loaded", False):
            return super().save_pretrained(save_directory, is_main_process, state_dict, push_to_hub, **kwargs)
        folder = Path(save_directory)
        hub = {name: kwargs.pop(name) for name in ("repo_id", "commit_message", "create_pr", "private", "revision")
               if name in kwargs}  # fmt: skip
        timestamps = self._get_files_timestamps(folder) if folder.is_dir() else {}
        processor = self._processor or self._load_processor()  # before the folder it may come from is written
        if has_adapter(self.generator):
            if state_dict is not None:
                raise ConfigError("An adapter is merged from the model's own layers, got a `state_dict` as well.")
            state_dict = self._merged_state_dict()
        self._enter_auto_classes()
        super().save_pretrained(folder, is_main_process, state_dict, **kwargs)
        if not is_main_process:
            return None
        _remove_older(folder / SAFE_WEIGHTS_NAME, folder / SAFE_WEIGHTS_INDEX_NAME)
        for source in Path(__file__).parent.glob("*_egrm.py"):
            copyfile(source, folder / source.name)
        if processor is not None:
            processor.save_pretrained(folder)
        self._write_card(folder)
        if push_to_hub:
            self._push_folder(folder, timestamps, token=kwargs.get("token"), **hub)
        return None

    def push_to_hub(  # pyright: ignore[reportIncompatibleVariableOverride] (the base class wraps its method)
        self, repo_id: str, *, tags: list[str] | None = None, **kwargs: Any
    ) -> Any:
        """Save and upload the checkpoint; arguments as in `PreTrainedModel.push_to_hub`.

        Args:
            repo_id: Repository, made if absent.
            tags: More tags for the model card.
            **kwargs: For example `private`, `revision`, `commit_message`, `max_shard_size`.
        """
        self.add_model_tags(tags or [])
        return super().push_to_hub(repo_id, **kwargs)  # pyright: ignore[reportArgumentType] (likewise)

    def _enter_auto_classes(self) -> None:
        from .pipeline_egrm import TASK, RewardScoringPipeline

        # Written out, because a class can be registered under one auto class only, and anew at every save, because
        # loading from the Hub prefixes the entries with the repository they came from.
        self.config.auto_map = dict(AUTO_MAP)
        implementation = f"pipeline_egrm.{RewardScoringPipeline.__name__}"
        self.config.custom_pipelines = {TASK: {"impl": implementation, "pt": ["AutoModel"], "type": "text"}}

    def _merged_state_dict(self) -> dict[str, Tensor]:
        state = {name: value for name, value in self.state_dict().items() if not name.startswith("generator.")}
        return {f"generator.{name}": value for name, value in merged_state_dict(self.generator).items()} | state

    def _write_card(self, folder: str | PathLike) -> None:
        parameters = {name: sum(p.numel() for p in part.parameters()) for name, part in self.named_children()}
        write_card(folder, self.config, parameters, self.model_tags or [])

    def _push_folder(
        self, folder: Path, timestamps: dict[str, float], *, repo_id: str | None = None, private: bool | None = None,
        token: str | None = None, **commit: Any,
    ) -> None:  # fmt: skip
        repo_id = hf_api().create_repo(repo_id or folder.name, private=private, token=token, exist_ok=True).repo_id
        card = folder / "README.md"
        if is_rendered(card.read_text(encoding="utf-8")):
            create_and_tag_model_card(repo_id, token=token).save(card)  # the repository's own, if it has one
        # A folder's time does not tell that a file inside was overwritten.
        timestamps = {name: time for name, time in timestamps.items() if not (folder / name).is_dir()}
        self._upload_modified_files(folder, repo_id, timestamps, token=token, **commit)

    def _upload_modified_files(self, working_dir: str | PathLike, *args: Any, **kwargs: Any) -> Any:
        # Transformers has just put the repository's card there, or a stub: only one written by hand may stay.
        self._write_card(working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    # ------------------------------------------------------------------------------------------------------- judging

    @property
    def task(self) -> JudgeTask:
        """The model's default judging task.

        Raises:
            ConfigError: The checkpoint has none.
        """
        if self.config.task is None:
            raise ConfigError("The checkpoint has no judging task.", "Assign a processor to `model.processor`.")
        return JudgeTask.from_dict(self.config.task)

    def judge(self, inputs: JudgeInputs, *, return_texts: bool = False, **options: Any) -> EGRMOutput:
        """Judge items: short verdicts first, and chains of thought where they disagree.

        Args:
            inputs: Prompts of B items, as the processor makes them, on any device.
            return_texts: Whether to return what the long path's chosen candidates say, as `rationales`.
            **options: Fields of `JudgeOptions`; the checkpoint has the defaults.

        Returns:
            Rewards [B] float32, NaN where `statuses` is not OK, and how they came about.

        Raises:
            ConfigError: An option is unknown, out of range, or contradicts verdict space or checkpoint.
            UnsupportedModelError: The decoder asked for is not exact for this generator.

        Source:
            https://huggingface.co/papers/2604.10072, section 3.
        """
        stage = self.probe(inputs, **options)
        long = self.deliberate(stage.long_items(), return_texts=return_texts, **options)
        return finish(stage.output, stage.long_index, long)

    @torch.no_grad()
    def probe(self, inputs: JudgeInputs, **options: Any) -> ShortStage:
        """The short path alone: prefill, probes, consensus, route.

        Args:
            inputs: Prompts of B items.
            **options: Fields of `JudgeOptions`.

        Returns:
            The output so far, and the items that need the long path, which may be pooled across batches.

        Raises:
            ConfigError: As in `judge`.
            UnsupportedModelError: As in `judge`.
        """
        resolved = self._options(inputs.task.space.kind, options)
        self.backbone.check_head()
        with _evaluating(self):
            if not resolved.strict:
                return probe_prompts(self, inputs, resolved)
            return join_stages([probe_prompts(self, inputs.item(i), resolved) for i in range(inputs.num_items)])

    @torch.no_grad()
    def deliberate(self, items: LongItems, *, return_texts: bool = False, **options: Any) -> EGRMOutput:
        """The long path alone: chains of thought and the choice among them.

        Args:
            items: What `ShortStage.long_items` returned, of one batch or pooled from many.
            return_texts: As in `judge`.
            **options: The same as for the short path.

        Returns:
            One row per item, the costs of its short path included.

        Raises:
            ConfigError: As in `judge`.
        """
        resolved = self._options(items[0].task.space.kind if items else None, options)
        with _evaluating(self):
            return deliberate(self, items, resolved, return_texts)

    def _options(self, kind: str | None, overrides: dict[str, Any]) -> JudgeOptions:
        options = self.config.judge_options(kind, **overrides)
        if options.selection == "scorer" and self.scorer is None:
            raise ConfigError(
                "selection='scorer' needs a scorer, and the checkpoint has none.", "Use selection='vote'."
            )
        if options.drafting != "none" and options.path != "short":
            draft_source(self, options)  # what cannot be done is refused before anything is run
        return options

    @property
    def backbone(self) -> Backbone:
        """The generator as the decode engine sees it."""
        if self._backbone is None or self._backbone.generator is not self.generator:
            self._backbone = Backbone(self.generator)
        return self._backbone

    @property
    def state_pooling(self) -> str | None:
        """What the scorer reads of the generator's hidden states; None where it reads texts."""
        return self.scorer.pooling if self.scorer is not None and self.scorer.kind == "generator_state" else None

    def decode_tokens(self, token_ids: list[list[int]], *, control: bool = False) -> list[str]:
        """Texts of N token sequences.

        Args:
            token_ids: N sequences of the generator's tokenizer.
            control: Whether control tokens are spelled out, else left out.
        """
        tokenizer = self.processor.tokenizer
        return tokenizer.batch_decode(token_ids, skip_special_tokens=not control) if token_ids else []

    def score_candidates(
        self, prompts: Sequence[str], texts: Sequence[str], states: Tensor | None, strict: bool
    ) -> tuple[Tensor, list[float]]:
        """The scorer's opinion of N candidates.

        Args:
            prompts: N judge prompts; empty where the scorer reads states.
            texts: N texts.
            states: [N, H] hidden state of each candidate, pooled over its tokens; None where the scorer reads texts.
            strict: One candidate per call.

        Returns:
            [N] float32 in [0, 1], and the floating-point operations each took.
        """
        assert self.scorer is not None, "checked in _options"
        if states is not None:
            scores = torch.cat([self.scorer.score_states(s) for s in states.split(1 if strict else len(states))])
            return scores, [2.0 * states.shape[-1]] * len(states)
        tokenizer = self.processor.scorer_tokenizer
        if tokenizer is None:
            raise ConfigError("The scorer reads texts, but the processor has no tokenizer for it.",
                              "Pass `scorer_tokenizer` when building the checkpoint.")  # fmt: skip
        check_vocabulary(tokenizer, self.scorer.encoder.config.vocab_size, "scorer")
        pairs = encode_pairs(prompts, texts, tokenizer, self.scorer.token_limit(tokenizer))
        cost = cost_model(self.scorer.encoder)
        return self.scorer.score_pairs(pairs, tokenizer, strict=strict), [cost.run(len(p.input_ids)) for p in pairs]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **options: Any,
    ) -> EGRMSequenceOutput:
        """Judge whole conversations given as token ids, as trainers ask a reward model to.

        The judge's turn, whose ids are stored in the configuration, is appended to each conversation; the result is the
        prompt that the processor makes for pointwise judging, token for token.

        Args:
            input_ids: [B, T] int64, prompt and completion rendered with the generator's chat template.
            attention_mask: [B, T], 1 on tokens, 0 on padding, which may be on either side or inside; by default all 1.
            token_type_ids: Ignored; some tokenizers add them.
            **options: Fields of `JudgeOptions`.

        Returns:
            `logits` [B, 1] float32 are the rewards, NaN where there is no verdict, which includes conversations that
            do not fit the context. No gradient flows. On the device of `input_ids`.

        Raises:
            ConfigError: The checkpoint has no task, or not one of layout `conversation`; or an option is wrong.
            InputError: A row holds no token.
        """
        task = self.task
        if task.layout != "conversation":
            raise ConfigError(
                f"Conversations are judged pointwise or as binary, but the checkpoint judges {task.space.kind}.",
                "Assign a processor with such a verdict space, or call `judge` with the inputs that a processor makes.",
            )
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        turn = list(task.judge_turn_ids)
        prompts = []
        for row, (ids, mask) in enumerate(zip(input_ids.cpu(), attention_mask.cpu(), strict=True)):
            conversation = ids[mask.bool()].tolist()
            if not conversation:
                raise InputError(f"Each row needs at least one token, got none in row {row}.")
            prompts.append(conversation + turn)
        limit, suffix = _longest_prompt(self.config), max(len(task.short_suffix_ids), len(task.long_suffix_ids))
        fits = [row for row, prompt in enumerate(prompts) if limit is None or len(prompt) + suffix <= limit]
        output = EGRMSequenceOutput(
            logits=torch.full((len(prompts), 1), torch.nan),
            consensus=torch.full((len(prompts),), torch.nan),
            routes=torch.full((len(prompts),), int(Route.LONG)),
            statuses=torch.full((len(prompts),), int(Status.TOO_LONG)),
            new_tokens=torch.zeros(len(prompts), dtype=torch.int64),
        )
        if fits:
            judged = self.judge(_inputs_of([prompts[row] for row in fits], task), **options)
            for name, value in (("logits", judged["rewards"][:, None]), *judged.items()):
                if name in output:
                    output[name][fits] = value.to(output[name].device)
        return EGRMSequenceOutput(**{name: value.to(input_ids.device) for name, value in output.items()})

    def generate(self, *args: Any, temperatures: Sequence[float] | None = None, **kwargs: Any) -> Any:
        """Let the generator write, with this checkpoint's generation settings.

        Args:
            *args: As in `GenerationMixin.generate`.
            temperatures: M temperatures: sample M branches of every prompt from one prefill, each at its own. Further
                arguments are then those of `engine_generate_egrm.generate`, among them `top_ps` and `seed`.
            **kwargs: As in `GenerationMixin.generate`; with `draft_model`, `draft_layers` or `draft_ngram` as in
                `draft_generate_egrm.generate`, which writes with the same law in fewer passes.
        """
        generator: Any = self.generator
        generator.generation_config = self.generation_config
        if temperatures is not None:
            return generate(generator, *args, temperatures=temperatures, **kwargs)
        if any(kwargs.get(name) is not None for name in ("draft_model", "draft_layers", "draft_ngram")):
            return generate_speculatively(generator, *args, **kwargs)
        return generator.generate(*args, **kwargs)


def _remove_older(weights: Path, index: Path) -> None:
    # Transformers leaves the single file of an earlier save beside new shards, and then loads the old weights.
    if weights.exists() and index.exists():
        min(weights, index, key=lambda path: path.stat().st_mtime_ns).unlink()


def _is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()


def _need_class(part: PreTrainedModel, shell: PreTrainedModel) -> None:
    if type(part) is not type(shell):
        raise UnsupportedModelError(
            f"The checkpoint would be loaded with a {type(shell).__name__}, but was given a {type(part).__name__}.",
            "Load the part with `AutoModelForCausalLM` (generator) or `AutoModel` (scorer).",
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    # A trainer may hold the model in training mode; dropout must not enter a judgement.
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _longest_prompt(config: EGRMConfig) -> int | None:
    # What a judgement writes must fit behind the prompt; many tokenizers state no limit of their own.
    context = getattr(config.get_text_config().get_text_config(), "max_position_embeddings", None)
    room = max(config.max_chain_tokens, config.max_probe_tokens)
    return context - room if context is not None and context > room else None


def _inputs_of(prompts: list[list[int]], task: JudgeTask) -> JudgeInputs:
    width, rows = max(map(len, prompts)), len(prompts)
    input_ids = torch.zeros(rows, width, dtype=torch.int64)
    attention_mask = torch.zeros_like(input_ids)
    for row, prompt in enumerate(prompts):
        input_ids[row, width - len(prompt) :] = torch.tensor(prompt)
        attention_mask[row, width - len(prompt) :] = 1
    return JudgeInputs(
        input_ids=input_ids,
        attention_mask=attention_mask,
        item_index=torch.arange(rows),
        swapped=torch.zeros(rows, dtype=torch.bool),
        item_ids=torch.tensor([item_id_of_tokens(prompt) for prompt in prompts]),
        task=task,
        shared_tokens=torch.zeros(rows, dtype=torch.int64),
        group_index=torch.arange(rows),
    )


__all__ = ["AUTO_MAP", "EGRMRewardModel", "EGRMSequenceOutput"]
