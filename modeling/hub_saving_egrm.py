"""A checkpoint as files: what is saved with the weights, and how it is loaded where this package is absent."""

from os import PathLike
from pathlib import Path
from shutil import copyfile
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import PROCESSOR_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import create_and_tag_model_card, hf_api

from .configuration_egrm import EGRMConfig
from .errors_egrm import ConfigError
from .hub_card_egrm import is_rendered, write_card
from .hub_components_egrm import has_adapter, merged_state_dict
from .judge_scorer_egrm import EGRMScorer, check_vocabulary
from .processing_egrm import EGRMProcessor


AUTO_MAP = {
    "AutoConfig": "configuration_egrm.EGRMConfig",
    "AutoModel": "modeling_egrm.EGRMRewardModel",
    "AutoModelForSequenceClassification": "modeling_egrm.EGRMRewardModel",
    "AutoProcessor": "processing_egrm.EGRMProcessor",
}
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


class EGRMPreTrainedModel(PreTrainedModel):
    """What an E-GRM checkpoint holds, and how it is saved and loaded."""

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

    def __init__(self, config: EGRMConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._processor: EGRMProcessor | None = None
        self._loading_options: dict[str, Any] = {}

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


def _remove_older(weights: Path, index: Path) -> None:
    # Transformers leaves the single file of an earlier save beside new shards, and then loads the old weights.
    if weights.exists() and index.exists():
        min(weights, index, key=lambda path: path.stat().st_mtime_ns).unlink()


__all__ = ["AUTO_MAP", "EGRMPreTrainedModel"]
