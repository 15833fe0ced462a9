"""From records to judge prompts: rubric, chat template, injection guard, truncation, batches."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, ProcessorMixin

from .engine_random_egrm import item_id_of_tokens
from .errors_egrm import ConfigError, InputError
from .judge_batch_egrm import EncodedItem, collate
from .judge_values_egrm import JudgeInputs
from .prompt_dates_egrm import DEFAULT_DATE, asks_for_the_date, read_date, with_fixed_date
from .prompt_groups_egrm import common_prefix
from .prompt_guard_egrm import TextGuard
from .prompt_messages_egrm import Message, as_text, map_texts, render_conversation, tools_as_text
from .prompt_records_egrm import JudgeRecord, draw_key, read_record
from .prompt_task_egrm import JudgeTask
from .prompt_templates_egrm import (
    LONG_MODE,
    SHORT_MODE,
    ChatFrame,
    conversation_body,
    embedded_body,
    format_line,
    layout,
    plain_chat_template,
    read_frame,
    read_rubric,
    reference_block,
)
from .prompt_thoughts_egrm import thought_marks
from .prompt_truncation_egrm import bound_record, fit_record, most_chars_per_token
from .verdict_space_egrm import VerdictSpace


TRUNCATIONS = ("error", "keep_ends")
SCORER_FOLDER = "scorer_tokenizer"
MAX_CACHED_TASKS = 32


class EGRMProcessor(ProcessorMixin):
    """Turns records into judge prompts and remembers two tokenizers.

    A judge prompt has one of two layouts. In pointwise and binary spaces it is the judged conversation, then the judge's
    turn: token for token what the chat template makes of prompt and completion, plus `JudgeTask.judge_turn_ids`. (Judged
    text that has to be neutralised is the exception.) In pairwise, listwise and free spaces it is one user turn that
    holds everything. Short and long mode are suffixes of token ids, so their prompts share all tokens before.

    Args:
        tokenizer: The generator's. Without a chat template a plain one is used.
        scorer_tokenizer: The scorer's, if it has one of its own.
        space: Default verdict space, as `VerdictSpace` or its `to_dict`; pointwise from 0 to 10.
        rubric: Default rubric, see `read_rubric`.
        max_prompt_tokens: Longest judge prompt, mode suffix included; None: the tokenizer's `model_max_length`.
        truncation: What happens to longer ones. `error` refuses them; `keep_ends` cuts the middle of the longest texts
            and reports the count.
        template_date: The day that a chat template writes which asks for today's; by default a fixed one, so that a
            record has the same prompt every day. It is stored where the template asks.

    Raises:
        ConfigError: There is no tokenizer, its chat template cannot be used, or a setting is out of range.
    """

    _auto_class = "AutoProcessor"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None = None,
        scorer_tokenizer: PreTrainedTokenizerBase | None = None,
        space: VerdictSpace | Mapping[str, Any] | None = None,
        rubric: str | None = None,
        max_prompt_tokens: int | None = None,
        truncation: str = "error",
        template_date: str | None = None,
    ) -> None:
        if tokenizer is None:
            raise ConfigError("A processor needs the generator's tokenizer, got None.")
        template = tokenizer.get_chat_template() if tokenizer.chat_template else plain_chat_template(tokenizer)
        super().__init__(tokenizer, chat_template=template)
        self.scorer_tokenizer = scorer_tokenizer
        self.space = _read_space(space) or VerdictSpace.pointwise()
        if truncation not in TRUNCATIONS:
            raise ConfigError(f"`truncation` must be one of {', '.join(TRUNCATIONS)}, got {truncation!r}.")
        if max_prompt_tokens is not None and (not isinstance(max_prompt_tokens, int) or max_prompt_tokens < 1):
            raise ConfigError(f"`max_prompt_tokens` must be a positive integer or None, got {max_prompt_tokens!r}.")
        read_rubric(rubric, self.space)
        self.rubric = rubric
        self.max_prompt_tokens = max_prompt_tokens
        self.truncation = truncation
        self.template_date = read_date(template_date or DEFAULT_DATE).isoformat()
        self._tasks: dict[tuple[VerdictSpace, str], JudgeTask] = {}
        self._suffixes: dict[VerdictSpace, JudgeTask] = {}

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] (records instead of texts and images)
        self,
        records: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        space: VerdictSpace | Mapping[str, Any] | None = None,
        rubric: str | None = None,
        groups: Sequence[int] | None = None,
    ) -> JudgeInputs:
        """One batch of judge prompts.

        Args:
            records: One record or several; see `read_record` for their keys.
            space: Verdict space of all of them, the processor's by default.
            rubric: Rubric of those that bring none.
            groups: Per record, the question it belongs to; see `collate`.

        Raises:
            InputError: A record cannot be judged as it is.
            PromptTooLongError: It is too long and the policy is `error`, or nothing is left to cut.
        """
        records = [records] if isinstance(records, Mapping) else records
        return self.collate([self.encode(record, space=space, rubric=rubric) for record in records], groups=groups)

    def task(self, space: VerdictSpace | Mapping[str, Any] | None = None, rubric: str | None = None) -> JudgeTask:
        """The judging task of a verdict space and rubric, the processor's own by default."""
        space = _read_space(space) or self.space
        rubric = self._read_rubric(rubric, space)
        if (space, rubric) not in self._tasks:
            if len(self._tasks) >= MAX_CACHED_TASKS:
                self._tasks.pop(next(iter(self._tasks)))
            if space not in self._suffixes:
                self._suffixes[space] = self._build_suffixes(space)
            turn = () if layout(space) == "embedded" else self._judge_turn_ids(space, [rubric])
            self._tasks[space, rubric] = replace(self._suffixes[space], judge_turn_ids=turn)
        return self._tasks[space, rubric]

    def encode(
        self,
        record: Mapping[str, Any],
        *,
        space: VerdictSpace | Mapping[str, Any] | None = None,
        rubric: str | None = None,
    ) -> EncodedItem:
        """One record as token ids.

        Args:
            record: See `read_record`.
            space: Its verdict space, the processor's by default.
            rubric: Its rubric where it brings none.

        Raises:
            InputError: A key is missing or unknown, or a field is empty or not text.
            PromptTooLongError: It is too long and the policy is `error`, or nothing is left to cut.
        """
        space = _read_space(space) or self.space
        whole = read_record(record, space)
        shorter, dropped = self._bounded(whole)
        read = self._shown(shorter, space)
        try:
            words = self._read_rubric(read.rubric or rubric, space)
        except ConfigError as error:
            if read.rubric is None:
                raise
            raise InputError(f"`rubric` of the record: {error}") from error
        task = self.task(space, read.rubric or rubric)
        read, cut, prompts = self._fit(read, task, words)
        turn = self._turn(read, task, words)
        orders = (False, True) if space.kind == "pairwise" else (False,)
        return EncodedItem(
            prompts=prompts,
            swapped=orders,
            item_id=_item_id(read.key, prompts),
            shared_tokens=common_prefix(prompts),
            truncated_tokens=cut + dropped,
            turn_tokens=len(turn),
            reference=whole.reference,
            task=task,
            fallback=read.refusal,
        )

    def collate(
        self, items: Sequence[EncodedItem], task: JudgeTask | None = None, groups: Sequence[int] | None = None
    ) -> JudgeInputs:
        """A batch of items, left-padded.

        Args:
            items: B of them, judged in the same verdict space.
            task: Their task, by default the first item's.
            groups: Per item, the question it belongs to; items of one question share its leading tokens. By default
                found: items whose prompts begin alike share what they have in common.

        Raises:
            InputError: There is no item, their verdict spaces differ, or there is not one group for each.
        """
        # Masks decide what is padding; the id only has to exist.
        pad = next((i for i in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id) if i is not None), 0)
        return collate(items, task, groups, pad)

    def _read_rubric(self, rubric: str | None, space: VerdictSpace) -> str:
        return read_rubric(self.rubric if rubric is None and space == self.space else rubric, space)

    # Text to ids

    @cached_property
    def _frame(self) -> ChatFrame:
        template = str(self.chat_template)
        return read_frame(self._render, TextGuard(self.tokenizer, template).split, template)

    @cached_property
    def _guard(self) -> TextGuard:
        guard = TextGuard(self.tokenizer, str(self.chat_template))
        guard.watch_turns(self._frame.between, self._frame.around_system)
        return guard

    def _render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        template = with_fixed_date(str(self.chat_template), self.template_date)
        return self.tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **variables)

    def _shown(self, record: JudgeRecord, space: VerdictSpace) -> JudgeRecord:
        """The record as the judge is shown it: neutralised, and text alone where no template renders it."""
        if layout(space) == "conversation":
            shown = self._neutralise(record, space, delimited=False)
            try:
                self._conversation(shown)
                return shown
            except InputError as error:
                record = replace(record, refusal=str(error))
            answer = as_text(Message("assistant", record.responses[0], record.answer_extras))
            record = replace(record, responses=(answer.content,), answer_extras={})
        messages = (*tools_as_text(record.tools), *map(as_text, record.messages))
        return self._neutralise(replace(record, messages=messages, tools=()), space, delimited=True)

    def _neutralise(self, record: JudgeRecord, space: VerdictSpace, *, delimited: bool) -> JudgeRecord:
        def plain(text: str) -> str:
            return self._guard.neutralise(text, delimited, space)

        shown = record.with_texts([plain(text) for text in record.texts])
        return replace(
            shown,
            messages=tuple(replace(m, extras=map_texts(m.extras, plain)) for m in shown.messages),
            tools=tuple(map_texts(shown.tools, plain)),
            answer_extras=map_texts(shown.answer_extras, plain),
            reference=record.reference and self._guard.neutralise(record.reference, True, space),
        )

    def _conversation(self, record: JudgeRecord) -> str:
        """A neutralised record through the chat template, its control strings hidden."""
        answer = Message("assistant", record.responses[0], record.answer_extras)
        return render_conversation(
            (*record.messages, answer), record.tools, render=self._render, hide=self._guard.hide,
            has_system=self._frame.has_system,
        )  # fmt: skip

    def _prompts(self, record: JudgeRecord, task: JudgeTask, rubric: str) -> tuple[tuple[int, ...], ...]:
        """Token ids of each prompt of a neutralised record."""
        guard, space = self._guard, task.space
        if task.layout == "embedded" or record.refusal:
            orders = (False, True) if space.kind == "pairwise" else (False,)
            bodies = [
                conversation_body(record, space, rubric)
                if record.refusal
                else embedded_body(record, space, rubric, swapped)
                for swapped in orders
            ]
            texts = [f"{self._frame.embedded_start}{guard.hide(body)}\n\n{format_line(space)}\n" for body in bodies]
            return tuple(tuple(guard.encode(text)) for text in texts)
        text = self._conversation(record)
        return ((*guard.encode(text), *self._turn(record, task, rubric)),)

    def _turn(self, record: JudgeRecord, task: JudgeTask, rubric: str) -> tuple[int, ...]:
        """The judge's turn after a record's conversation; empty where the prompt is one turn."""
        if record.refusal:
            return ()
        reference = () if task.layout == "embedded" else reference_block(record, task.space)
        return self._judge_turn_ids(task.space, [*reference, rubric]) if reference else task.judge_turn_ids

    def _judge_turn_ids(self, space: VerdictSpace, parts: Sequence[str]) -> tuple[int, ...]:
        frame, words = self._frame, self._guard.hide("\n\n".join([*parts, format_line(space)]))
        return tuple(self._guard.continue_ids(frame.example, f"{frame.turn_start}{words}\n"))

    def _build_suffixes(self, space: VerdictSpace) -> JudgeTask:
        guard, frame = self._guard, self._frame
        cue, gap = space.answer_cue
        context = f"{frame.example}{frame.turn_start}{format_line(space)}\n"
        choices = []
        # Where the tokenizer keeps the space apart (split digits), the cue takes it: verdicts are one token shorter.
        for inside in dict.fromkeys(("", gap)):
            short = f"{SHORT_MODE}{frame.short_end}{cue}{inside}"
            suffix = guard.continue_ids(context, short)
            rest = "" if inside else gap
            labels = [f"{rest}{label}" for label in space.labels] if space.listed else []
            verdicts = [guard.label_ids(context + short, label, set_off=not gap) for label in labels]
            branches = {verdict[:length] for verdict in verdicts for length in range(1, len(verdict) + 1)}
            if all(verdicts) and len(set(verdicts)) == len(verdicts):
                choices.append((len(branches), suffix, verdicts))
        if not choices:
            raise ConfigError(
                f"The tokenizer merges the answer cue {cue!r} with what follows it, so no verdict can be told apart.",
                "Use a generator whose tokenizer keeps a colon and a space apart from letters and digits.",
            )
        _, suffix, verdicts = min(choices, key=lambda choice: choice[0])
        ends = self._end_ids()
        return JudgeTask(
            space=space,
            layout=layout(space),
            judge_turn_ids=(),
            short_suffix_ids=tuple(suffix),
            long_suffix_ids=tuple(guard.continue_ids(context, f"{LONG_MODE}{frame.long_end}")),
            verdict_token_ids=tuple(verdicts),
            probe_stop_ids=tuple(sorted({*ends, *self._line_break_ids})),
            chain_stop_ids=tuple(sorted(ends)),
            thinking_opened=frame.thinking_opened,
            thought_marks=thought_marks(self._render, str(self.chat_template), self._added_tokens),
            turn_marker=None if self._turn_end_ids() else frame.turn_start.rstrip() or None,
        )

    def cue_frame(self, space: VerdictSpace) -> tuple[str, str, str]:
        """What stands before a single user's words, what between the short mode and a label, and what begins the label."""
        frame, (cue, gap) = self._frame, space.answer_cue
        suffix = self.tokenizer.decode(self.task(space).short_suffix_ids, clean_up_tokenization_spaces=False)
        inside, outside = (gap, "") if suffix.endswith(f"{cue}{gap}") else ("", gap)
        return frame.embedded_start, f"{frame.short_end}{cue}{inside}", outside

    def _turn_end_ids(self) -> list[int]:
        """The control token that ends an assistant's turn, if the template writes one."""
        after = self._guard.encode(self._frame.end_of_turn)
        return [index for index in after if index in self._guard.control_ids][:1]

    @property
    def _added_tokens(self) -> list[str]:
        return [token.content for token in self.tokenizer.added_tokens_decoder.values()]

    def _end_ids(self) -> set[int]:
        eos = self.tokenizer.eos_token_id
        return {*self._turn_end_ids(), *([eos] if eos is not None else [])}

    @cached_property
    def _line_break_ids(self) -> tuple[int, ...]:
        """Tokens of whitespace with a line break: where a probe has nothing more to say."""
        blank = set(" \t\r\n\u2581\u0120\u010a\u0109\u010d")  # also as SentencePiece and byte-level BPE spell them
        found = [
            index
            for token, index in self.tokenizer.get_vocab().items()
            if (set(token) <= blank or token in ("<0x0A>", "<0x0D>")) and index not in self._guard.control_ids
        ]
        texts = [(index, self.tokenizer.decode([index], clean_up_tokenization_spaces=False)) for index in found]
        return tuple(sorted(index for index, text in texts if "\n" in text and text.isspace()))

    # Length

    @cached_property
    def _chars_per_token(self) -> int:
        return most_chars_per_token(self.tokenizer.get_vocab())

    def _bounded(self, record: JudgeRecord) -> tuple[JudgeRecord, int]:
        """The record without what cannot fit whatever its tokens are, and how many tokens that was."""
        limit, may_cut = self._limit, self.truncation != "error"
        return (
            (record, 0)
            if limit is None
            else bound_record(record, limit, self.tokenizer, self._chars_per_token, may_cut)
        )

    @property
    def _limit(self) -> int | None:
        if self.max_prompt_tokens is not None:
            return self.max_prompt_tokens
        longest = self.tokenizer.model_max_length
        return longest if longest < 10**9 else None  # Tokenizers without a limit say 1e30.

    def _fit(
        self, record: JudgeRecord, task: JudgeTask, rubric: str
    ) -> tuple[JudgeRecord, int, tuple[tuple[int, ...], ...]]:
        """The record cut until its prompts fit, how many tokens that took, and the prompts."""
        suffix = max(len(task.short_suffix_ids), len(task.long_suffix_ids))
        return fit_record(
            record, self._limit, suffix, self._guard.spans, lambda own: self._prompts(own, task, rubric),
            may_cut=self.truncation != "error",
        )  # fmt: skip

    # Files

    @classmethod
    def get_attributes(cls) -> list[str]:
        """The parts that the base class saves and loads; the optional scorer tokenizer is saved and loaded here."""
        return ["tokenizer"]

    def to_dict(self) -> dict[str, Any]:
        """The settings that `processor_config.json` holds."""
        settings = {
            "processor_class": type(self).__name__,
            "auto_map": getattr(self, "auto_map", None),
            "space": self.space.to_dict(),
            "rubric": self.rubric,
            "max_prompt_tokens": self.max_prompt_tokens,
            "truncation": self.truncation,
            "template_date": self.template_date if asks_for_the_date(str(self.chat_template)) else None,
            "has_scorer_tokenizer": self.scorer_tokenizer is not None,
        }
        return {key: value for key, value in settings.items() if value is not None}

    def save_pretrained(
        self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any
    ) -> list[str]:
        """Writes settings, both tokenizers and the source files, and uploads them if asked to; see the base class."""
        if self.scorer_tokenizer is not None:
            folder = os.path.join(save_directory, SCORER_FOLDER)
            self.scorer_tokenizer.save_pretrained(folder)
            # Without a configuration beside it, an offline load from a cache silently takes the root's tokenizer.
            config = os.path.join(folder, "config.json")
            if not os.path.exists(config):
                with open(config, "w", encoding="utf-8") as file:
                    json.dump({}, file)
        marked = getattr(self.tokenizer, "_processor_class", None)
        try:
            files = super().save_pretrained(save_directory)
        finally:  # A mark that stays would make a policy that is saved with this tokenizer load as a judge.
            self.tokenizer._processor_class = marked
        if push_to_hub:  # The base class would upload what it wrote itself, and not the scorer's tokenizer.
            self.push_to_hub(kwargs.pop("repo_id", os.path.basename(os.path.abspath(save_directory))), **kwargs)
        return files

    @classmethod
    def _get_arguments_from_pretrained(
        cls, pretrained_model_name_or_path: str, processor_dict: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[PreTrainedTokenizerBase]:
        arguments = super()._get_arguments_from_pretrained(pretrained_model_name_or_path, processor_dict, **kwargs)
        if (processor_dict or {}).get("has_scorer_tokenizer"):
            subfolder = os.path.join(kwargs.pop("subfolder", ""), SCORER_FOLDER)
            arguments.append(
                AutoTokenizer.from_pretrained(pretrained_model_name_or_path, subfolder=subfolder, **kwargs)
            )
        return arguments


def _read_space(space: VerdictSpace | Mapping[str, Any] | None) -> VerdictSpace | None:
    return None if space is None else VerdictSpace.read(space)


def _item_id(key: int | str | None, prompts: Sequence[Sequence[int]]) -> int:
    key = key if key is None else draw_key(key)
    if isinstance(key, int) and -(2**63) <= key < 2**63:
        return key
    if key is None:
        return item_id_of_tokens(prompts[0])  # what a model's forward does, that sees nothing but tokens
    return int.from_bytes(hashlib.blake2b(str(key).encode("utf-8"), digest_size=8).digest(), "little") >> 1


__all__ = ["EGRMProcessor"]
