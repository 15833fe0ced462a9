"""`EGRMRewardModel`: a generator that judges, a scorer that picks among its chains, one checkpoint."""

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

from .configuration_egrm import EGRMConfig
from .draft_chains_egrm import ChainDrafts
from .draft_generate_egrm import generate as generate_speculatively
from .draft_sources_egrm import DraftSource
from .engine_backbone_egrm import Backbone, evaluating
from .engine_flops_egrm import cost_model
from .engine_generate_egrm import generate
from .engine_local_egrm import LocalEngine
from .engine_protocol_egrm import Engine, need_abilities
from .errors_egrm import ConfigError, need_flag
from .hub_components_egrm import adopt_quantization, is_hub_id, need_class, plain_generator, quantization_method
from .hub_saving_egrm import EGRMPreTrainedModel
from .judge_assessor_egrm import assessor_of
from .judge_familiar_egrm import look_at_inputs
from .judge_limits_egrm import longest_prompt, need_context, need_readable, need_room
from .judge_long_egrm import deliberate
from .judge_options_egrm import STORED_NAMES, JudgeOptions
from .judge_plan_egrm import JudgePlan
from .judge_probes_egrm import check_task, needed_abilities
from .judge_rows_egrm import finish, join_stages
from .judge_scorer_egrm import EGRMScorer, check_vocabulary, encode_pairs
from .judge_short_egrm import judge_short
from .judge_tokens_egrm import (
    judge_conversations,
    judging_options,
    lacks_turns,
    read_conversations,
    refusing_gradients,
    warn_of_missing_turns,
)
from .judge_values_egrm import EGRMOutput, EGRMSequenceOutput, JudgeInputs, LongItems, ShortStage
from .processing_egrm import EGRMProcessor
from .prompt_task_egrm import JudgeTask


class EGRMRewardModel(EGRMPreTrainedModel, GenerationMixin):
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

    def __init__(self, config: EGRMConfig) -> None:
        config.need_generator()  # before anything is allocated
        super().__init__(config)
        self.generator = AutoModelForCausalLM.from_config(config.generator_config)
        self.scorer = EGRMScorer(config) if config.has_scorer else None
        self.draft = None if config.draft_config is None else AutoModelForCausalLM.from_config(config.draft_config)
        self.assessor = assessor_of(config)
        self._backbone: Backbone | None = None
        self._engine: Engine | None = None
        self._warned_of_turns = False
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
            **settings: Fields of `EGRMConfig`, among them `scorer_kind="generator_state"` for a scorer without encoder, and
                judging defaults by name, such as `num_chains=2`.

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
        known = {field.name for field in fields(EGRMConfig)} - parts.keys() - {"task", "base_models", "assessor"} | {
            *STORED_NAMES
        }
        if unknown := sorted(settings.keys() - known):
            raise ConfigError(f"{unknown} cannot be set here.", f"Fields that can: {', '.join(sorted(known))}.")
        if encoder is not None and settings.get("scorer_kind", "encoder") != "encoder":
            raise ConfigError("A scorer of kind generator_state has no encoder, got one.", "Leave one of the two out.")
        sources = [part.config.name_or_path for part in (generator, encoder, draft) if part is not None]
        with torch.device("meta"):  # the shell only: its weights are replaced below
            model = cls(
                EGRMConfig(**parts, base_models=[name for name in sources if name and is_hub_id(name)], **settings)
            )
        need_class(generator, model.generator)
        model.generator, model.config.generator_config = generator, generator.config
        if model.scorer is not None:
            if encoder is not None:
                need_class(encoder, model.scorer.encoder)
                model.config.scorer_config = encoder.config
            model.scorer = EGRMScorer(model.config, encoder)
            model._init_weights(model.scorer.score_head)
        if draft is not None:
            shell, draft = model.draft, plain_generator(draft)
            assert shell is not None, "made from its configuration"
            need_class(draft, shell)
            model.attach_draft(draft)
        model.generation_config, model.config.dtype = generator.generation_config, generator.dtype
        if quantization_method(generator) is not None:
            adopt_quantization(model, generator)
        if processor is not None or tokenizer is not None:
            limit = model.config.longest_prompt
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
    def task(self) -> JudgeTask:
        """The model's default judging task.

        Raises:
            ConfigError: The checkpoint has none.
        """
        if self.config.task is None:
            raise ConfigError("The checkpoint has no judging task.", "Assign a processor to `model.processor`.")
        return JudgeTask.from_dict(self.config.task)

    def judge(
        self, inputs: JudgeInputs, *, plan: JudgePlan | None = None, return_texts: bool = False, explain: bool = False,
        states: str | None = None, **options: Any,
    ) -> EGRMOutput:  # fmt: skip
        """Judge items: short verdicts first, and chains of thought where they disagree.

        Args:
            inputs: Prompts of B items, as the processor makes them, on any device.
            plan: Number of probes, path, tau and deadline of each item; by default as the options say.
            return_texts: Whether to return what the long path's chosen candidates say, as `rationales`.
            explain: Whether to return how each reward came about, as `accounts`.
            states: Which hidden states the candidates of accounts carry, one of `POOLINGS`, where no scorer reads any.
            **options: Fields of `JudgeOptions`; the checkpoint has the defaults.

        Returns:
            Rewards [B] float32, NaN where `statuses` is not OK, and how they came about.

        Raises:
            ConfigError: An option is unknown, out of range, or contradicts verdict space or checkpoint.
            PromptTooLongError: After a prompt, the context has no room for a verdict or a chain of the length asked for.
            UnsupportedModelError: The engine cannot do what the options ask for.

        Source:
            https://huggingface.co/papers/2604.10072, section 3.
        """
        look_at_inputs(self.config, inputs)
        stage = self.probe(inputs, plan=plan, explain=explain, states=states, **options)
        asked = {"return_texts": return_texts, "explain": explain, "states": states}
        long = self.deliberate(stage.long_items(), **asked, **options)
        return finish(stage.output, stage.long_index, long)

    @torch.no_grad()
    def probe(
        self, inputs: JudgeInputs, *, plan: JudgePlan | None = None, explain: bool = False, states: str | None = None,
        **options: Any,
    ) -> ShortStage:  # fmt: skip
        """The short path alone: prefill, probes, consensus, route.

        Args:
            inputs: Prompts of B items.
            plan: As in `judge`.
            explain: As in `judge`.
            states: As in `judge`.
            **options: Fields of `JudgeOptions`.

        Returns:
            The output so far, and the items that need the long path, which may be pooled across batches.

        Raises:
            ConfigError: As in `judge`.
            PromptTooLongError: As in `judge`.
            UnsupportedModelError: As in `judge`.
        """
        need_readable(inputs, explain, states)
        resolved = self._options(inputs.task, options)
        need_room(inputs, self.config, resolved, plan)
        plan = plan or JudgePlan.of([resolved] * inputs.num_items, inputs.item_ids.tolist())
        if plan.num_items != inputs.num_items or max(plan.num_probes) > len(resolved.temperatures):
            raise ConfigError(
                f"A plan needs one decision per item ({inputs.num_items}) and at most {len(resolved.temperatures)} "
                f"probes, got {plan!r:.300}."
            )
        self._tell_what_is_uncovered(inputs.task, resolved, plan)
        parts = [(inputs, plan)]
        if resolved.strict:
            parts = [(inputs.item(item), plan.select([item])) for item in range(inputs.num_items)]
        with evaluating(self):
            return join_stages([judge_short(self, part, resolved, own, explain, states) for part, own in parts])

    @torch.no_grad()
    def deliberate(
        self, items: LongItems, *, return_texts: bool = False, explain: bool = False, states: str | None = None,
        **options: Any,
    ) -> EGRMOutput:  # fmt: skip
        """The long path alone: chains of thought and the choice among them.

        Args:
            items: What `ShortStage.long_items` returned, of one batch or pooled from many.
            return_texts: As in `judge`.
            explain: As in `judge`.
            states: As in `judge`.
            **options: The same as for the short path.

        Returns:
            One row per item, the costs of its short path included.

        Raises:
            ConfigError: As in `judge`.
        """
        need_flag("return_texts", return_texts)
        resolved = self._options(items[0].task if items else None, options)
        with evaluating(self):
            return deliberate(self, items, resolved, return_texts, explain, states)

    def _options(self, task: JudgeTask | None, overrides: dict[str, Any]) -> JudgeOptions:
        # What cannot be done is refused before anything is run.
        kind = None if task is None else task.space.kind if task.space.listed else "free"
        options = self.config.judge_options(kind, **overrides)
        if options.selection == "scorer" and self.scorer is None:
            raise ConfigError(
                "selection='scorer' needs a scorer, and the checkpoint has none.", "Use selection='vote'."
            )
        if task is not None:
            check_task(task, options)
        need_context(self.config, options)
        need_abilities(self.engine, needed_abilities(options, self.state_pooling, self.assessor_for(task, options)))
        if options.drafting != "none" and options.path != "short" and self._engine is None:
            self.drafts.check(options)
        return options

    @property
    def engine(self) -> Engine:
        """What writes: the generator in this process, or what was put in its place."""
        return LocalEngine(self.backbone, self.drafts) if self._engine is None else self._engine

    @engine.setter
    def engine(self, engine: Engine | None) -> None:
        self._engine = engine

    @property
    def writes_itself(self) -> bool:
        """Whether the generator in this process writes, and nothing in its place."""
        return self._engine is None

    @property
    def drafts(self) -> ChainDrafts:
        """Who writes chains from drafts in this process."""
        return ChainDrafts(self.backbone, self.draft)

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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> EGRMSequenceOutput | tuple[Tensor, ...]:
        """Judge whole conversations given as token ids, as trainers ask a reward model to.

        The judge's turn, whose ids are stored in the configuration, is appended to each conversation; the result is the
        prompt that the processor makes for pointwise judging, token for token.

        Args:
            input_ids: [B, T] int64, prompt and completion rendered with the generator's chat template.
            attention_mask: [B, T], 1 on tokens, 0 on padding, which may be on either side or inside; by default all 1.
            token_type_ids: Ignored; some tokenizers add them.
            return_dict: False for a tuple of the output's fields.
            **options: Fields of `JudgeOptions`. What wrappers pass to every model (`judge_tokens_egrm.IGNORED`) is ignored.

        Returns:
            `logits` [B, 1] float32, the rewards, on the device of `input_ids`. A conversation without a verdict has
            `config.no_verdict_reward`, by default NaN; so has one that does not fit the context. No gradient flows: in
            training mode with gradients on, the backward pass raises a ConfigError.

        Raises:
            ConfigError: The checkpoint has no task, or one of another layout than `conversation`, or its processor has
                another task; an option is wrong; or there are labels.
            InputError: A row holds no token.
        """
        options = judging_options(options)
        task = self.task
        conversations = read_conversations(input_ids, attention_mask, task)
        self._look_for_turns(conversations, task)
        limit = longest_prompt(self.config, self._options(task, options).room, task)
        output = judge_conversations(conversations, task, limit, partial(self.judge, **options))
        if (fill := self.config.no_verdict_reward) is not None:
            output["logits"].nan_to_num_(fill)
        if self.training and torch.is_grad_enabled():
            output["logits"] = refusing_gradients(output["logits"])
        assert input_ids is not None, "read above"
        output = EGRMSequenceOutput(**{name: value.to(input_ids.device) for name, value in output.items()})
        return output.to_tuple() if return_dict is False else output

    def _look_for_turns(self, conversations: Sequence[Sequence[int]], task: JudgeTask) -> None:
        # The first use of token ids is also where the two copies of the task are compared.
        if self._processor is None:
            self._processor = self._load_processor()
        if self._processor is None or self._warned_of_turns:
            return
        if lacks_turns(conversations, self._processor.tokenizer, task):
            self._warned_of_turns = True
            warn_of_missing_turns()

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


__all__ = ["EGRMRewardModel", "EGRMSequenceOutput"]
