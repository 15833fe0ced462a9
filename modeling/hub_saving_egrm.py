"""A checkpoint as files: what is saved with the weights, and how it is loaded where this package is absent."""

import warnings
from os import PathLike
from pathlib import Path
from shutil import copyfile
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import PROCESSOR_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import create_and_tag_model_card, hf_api

from .configuration_egrm import EGRMConfig
from .errors_egrm import ConfigError, ModelError
from .hub_card_egrm import is_rendered, write_card
from .hub_components_egrm import has_adapter, merged_state_dict
from .judge_assessor_egrm import EGRMAssessor
from .judge_certificate_egrm import differences, fingerprint
from .judge_options_egrm import JudgeOptions
from .judge_plan_egrm import JudgePlan
from .judge_scorer_egrm import EGRMScorer, check_vocabulary
from .processing_egrm import EGRMProcessor
from .prompt_decisions_egrm import decision_files
from .prompt_task_egrm import JudgeTask


AUTO_MAP = {
    "AutoConfig": "configuration_egrm.EGRMConfig",
    "AutoModel": "modeling_egrm.EGRMRewardModel",
    "AutoModelForDecision": "decision_egrm.EGRMForDecision",
    "AutoModelForSequenceClassification": "modeling_egrm.EGRMRewardModel",
    "AutoProcessor": "processing_egrm.EGRMProcessor",
}
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
MAX_NAMES = 12  # of missing tensors in one message
MAX_SHOWN = 600  # characters of a value in one message


class EGRMPreTrainedModel(PreTrainedModel):
    """What an E-GRM checkpoint holds, and how it is saved and loaded."""

    config: EGRMConfig
    generator: PreTrainedModel
    scorer: EGRMScorer | None
    assessor: EGRMAssessor | None
    draft: PreTrainedModel | None
    base_model_prefix = "egrm"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # It attends to nothing itself; its components answer for themselves.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    # The first list also keeps every quantisation method away from both, the second is for reduced precision.
    _keep_in_fp32_modules = ["scorer", "assessor"]  # noqa: RUF012 (the base class declares it so)
    _keep_in_fp32_modules_strict = ["scorer", "assessor"]  # noqa: RUF012

    def __init__(self, config: EGRMConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._processor: EGRMProcessor | None = None
        self._loading_options: dict[str, Any] = {}
        self._fingerprint: str | None = None
        self._warned_of_certificate = False

    @property
    def processor(self) -> EGRMProcessor:
        """The processor that belongs to the model, loaded from its folder or repository when first asked for.

        Assigning one makes its task the model's default.

        Raises:
            ConfigError: There is none; its task is not the one in the configuration; on assignment: a tokenizer is missing or
                belongs to another model.
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

    def attach_assessor(self, assessor: EGRMAssessor | None) -> None:
        """Let an assessor decide before the probes from now on; it becomes part of the checkpoint.

        Args:
            assessor: Trained on this generator, in this task; its weights are not copied. None: no one decides any more.
        """
        self.assessor = None if assessor is None else assessor.to(self.device).eval()
        self.config.assessor = None if assessor is None else assessor.settings.to_dict()

    def assessor_for(self, task: JudgeTask | None, options: JudgeOptions) -> EGRMAssessor | None:
        """Who decides before the probes of a call; None: no one, since an assessor speaks of the task it was trained in only.

        Args:
            task: What is judged.
            options: How, resolved.
        """
        assessor = self.assessor
        if assessor is None or not options.assess or not assessor.settings.decides_on(options.path):
            return None
        return assessor if task is not None and assessor.knows(task) else None

    def _load_processor(self) -> EGRMProcessor | None:
        path, options = self.config.name_or_path, self._loading_options
        hub = {name: value for name, value in options.items() if name != "trust_remote_code"}
        if not path or not cached_file(path, PROCESSOR_NAME, _raise_exceptions_for_missing_entries=False, **hub):
            return None
        processor = EGRMProcessor.from_pretrained(path, **options)
        _need_one_task(self.config, processor)
        return processor

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike, *model_args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint; arguments and result as in `PreTrainedModel.from_pretrained`.

        `dtype` is the generator's: the scorer is float32 in any case, and no quantisation touches it.

        Raises:
            ModelError: The file lacks tensors, or has some of another shape. Only the head of a scorer that was never trained
                may be missing: it is initialised, and reported as Transformers does.
        """
        options = {name: kwargs[name] for name in _HUB_OPTIONS if kwargs.get(name) is not None}
        options["trust_remote_code"] = bool(kwargs.get("trust_remote_code"))
        want_report = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(  # a pair, for `output_loading_info`
            pretrained_model_name_or_path, *model_args, output_loading_info=True, **kwargs
        )
        model, report = loaded
        _need_whole(model.config, report)
        model._loading_options = options
        model.generator.generation_config = model.generation_config
        return (model, report) if want_report else model

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride] (the rest is passed on by name)
        self,
        save_directory: str | PathLike,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save everything that makes the checkpoint usable where this package is not installed.

        Besides weights and configuration: the processor with both tokenizers, every source file, the pipeline's entry,
        `decision.json` with its template, and a model card (unless the folder has one written by hand). A live adapter of the generator is merged in the
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
            for name, text in decision_files(processor).items():
                (folder / name).write_text(text, encoding="utf-8")
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

    def certificate_for(self, task: JudgeTask | None = None, **options: Any) -> dict[str, Any] | None:
        """The checkpoint's certificate, where it covers judging with these options; else None.

        The weights are read once, when this is first asked: what changes them afterwards in the same process is not seen.

        Args:
            task: What is judged; by default the checkpoint's own task.
            **options: Fields of `JudgeOptions`, by default the checkpoint's.

        Raises:
            ConfigError: An option is unknown or out of range.
        """
        resolved = self.config.judge_options(None if task is None else task.space.kind, **options)
        return None if self._uncovered(task, resolved) else self.config.certificate

    def _uncovered(self, task: JudgeTask | None, options: JudgeOptions) -> list[str]:
        if self.config.certificate is None:
            return []
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self)
        found = differences(self.config.certificate, self._fingerprint, task, options)
        if self.assessor_for(task or JudgeTask.from_dict(self.config.task or {}), options) is not None:
            found.append("an assessor decides before the probes, and was not certified with them")
        return found

    def _tell_what_is_uncovered(self, task: JudgeTask, options: JudgeOptions, plan: JudgePlan) -> None:
        if self.config.certificate is None or self._warned_of_certificate:
            return
        for own in plan.distinct(options):
            if found := self._uncovered(task, own):
                self._warned_of_certificate = True
                warnings.warn(f"The checkpoint's certificate does not cover this call: {'; '.join(found)}. Its promise does "
                              "not hold here; `egrm calibrate` makes a new one.", stacklevel=4)  # fmt: skip
                return

    def _enter_auto_classes(self) -> None:
        # Remote code brings the files that imports name, and a judge that came so is saved whole: these two are named here.
        from .decision_egrm import EGRMForDecision
        from .pipeline_egrm import TASK, RewardScoringPipeline

        # Written out, because a class can be registered under one auto class only, and anew at every save, because
        # loading from the Hub prefixes the entries with the repository they came from.
        self.config.auto_map = AUTO_MAP | {"AutoModelForDecision": f"decision_egrm.{EGRMForDecision.__name__}"}
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


def _need_one_task(config: EGRMConfig, processor: EGRMProcessor) -> None:
    # `forward` reads the copy in config.json, records are read with the one in processor_config.json.
    if config.task is None:
        return
    differing = JudgeTask.from_dict(config.task).differences(processor.task())
    if differing:
        texts = []
        for name, pair in differing.items():
            if name.endswith("_ids") and name != "verdict_token_ids":
                pair = tuple(processor.tokenizer.decode(list(ids)) for ids in pair)
            first, second = (repr(value)[:MAX_SHOWN] for value in pair)
            texts.append(f"{name} is {first} in config.json and {second} in processor_config.json")
        raise ConfigError(
            f"The checkpoint has two copies of its judging task, and they differ: {'; '.join(texts)}.",
            "To change the task, assign `EGRMProcessor.from_pretrained(...)` to `model.processor` and save the model, which "
            "writes both.",
        )


def _need_whole(config: EGRMConfig, report: dict[str, Any]) -> None:
    # Transformers fills what it did not find with fresh random weights and only warns: rewards would look like any others.
    fresh = () if config.scorer_trained else ("scorer.score_head.", "scorer.norm.")
    mismatched = {key[0] if isinstance(key, tuple) else key for key in report.get("mismatched_keys") or ()}
    lacking = sorted(name for name in {*report["missing_keys"], *mismatched} if not name.startswith(fresh))
    if lacking:
        shown = ", ".join(lacking[:MAX_NAMES]) + (", ..." if len(lacking) > MAX_NAMES else "")
        raise ModelError(
            f"The checkpoint lacks {len(lacking)} of the model's tensors, or has them in another shape: {shown}.",
            "Copy its weights anew, or save it again from the model it came from.",
        )


def _remove_older(weights: Path, index: Path) -> None:
    # Transformers leaves the single file of an earlier save beside new shards, and then loads the old weights.
    if weights.exists() and index.exists():
        min(weights, index, key=lambda path: path.stat().st_mtime_ns).unlink()


__all__ = ["AUTO_MAP", "EGRMPreTrainedModel"]
