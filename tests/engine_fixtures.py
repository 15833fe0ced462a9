"""What the engine's tests share: a judge without checkpoint or processor, prompts, and slow definitions to compare with."""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from tiny import tiny_tokenizer
from torch import Tensor

from transformers_egrm.modeling.backbone_egrm import Backbone
from transformers_egrm.modeling.chains_egrm import deliberate, finish
from transformers_egrm.modeling.configuration_egrm import JudgeOptions
from transformers_egrm.modeling.outputs_egrm import EGRMOutput, JudgeInputs
from transformers_egrm.modeling.probes_egrm import ShortStage, probe_prompts
from transformers_egrm.modeling.verdicts_egrm import JudgeTask, VerdictSpace


EOS = 4
SHORT_SUFFIX, LONG_SUFFIX = (7, 8, 9), (11, 12, 13, 14)


class TinyJudge:
    """What `probe_prompts` and `deliberate` need of a model, around one generator.

    Its scorer is a plain function: of the text's length, or of the hidden state where `wants_states`.
    """

    def __init__(self, generator, wants_states: bool = False) -> None:
        self.backbone = Backbone(generator)
        self.wants_states = wants_states
        self.scored: list[tuple[str, str]] = []
        self.states: list[Tensor] = []

    def decode_tokens(self, token_ids: list[list[int]]) -> list[str]:
        return tiny_tokenizer().batch_decode(token_ids, skip_special_tokens=True)

    def score_candidates(
        self, prompts: Sequence[str], texts: Sequence[str], states: Tensor | None, strict: bool
    ) -> tuple[Tensor, list[float]]:
        if states is not None:
            self.states.append(states)
            return states.float().mean(-1).sigmoid(), [0.0] * len(states)
        self.scored += list(zip(prompts, texts, strict=True))
        return torch.tensor([score_text(text) for text in texts]), [1.0] * len(texts)

    def probe(self, inputs: JudgeInputs, **options) -> ShortStage:
        with torch.no_grad():
            return probe_prompts(self, inputs, JudgeOptions().with_overrides(**options))

    def judge(self, inputs: JudgeInputs, return_texts: bool = False, **options) -> EGRMOutput:
        stage = self.probe(inputs, **options)
        with torch.no_grad():
            long = deliberate(self, stage.long_items(), JudgeOptions().with_overrides(**options), return_texts)
        return finish(stage.output, stage.long_index, long)


def score_text(text: str) -> float:
    return (sum(text.encode()) % 997) / 997


def tiny_task(space: VerdictSpace | None = None, **changes) -> JudgeTask:
    space = space or VerdictSpace.pointwise(0, 10)
    tokenizer = tiny_tokenizer()
    values = {
        "space": space,
        "layout": "embedded",
        "judge_turn_ids": (),
        "short_suffix_ids": SHORT_SUFFIX,
        "long_suffix_ids": LONG_SUFFIX,
        "verdict_token_ids": tuple(
            tuple(tokenizer(f" {label}", add_special_tokens=False).input_ids) for label in space.labels
        ),
        "probe_stop_ids": (EOS, *tokenizer("\n", add_special_tokens=False).input_ids),
        "chain_stop_ids": (EOS,),
    }
    return JudgeTask(**{**values, **changes})


def tiny_inputs(task: JudgeTask, prompts: Sequence[Sequence[int]], orders: int = 1, item_ids=None) -> JudgeInputs:
    """A left-padded batch; `orders` consecutive prompts belong to one item, every second one swapped."""
    width, rows = max(map(len, prompts)), len(prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return JudgeInputs(
        input_ids=ids,
        attention_mask=mask,
        item_index=torch.arange(rows) // orders,
        swapped=torch.arange(rows) % orders == 1,
        item_ids=torch.arange(100, 100 + rows // orders) if item_ids is None else torch.tensor(item_ids),
        task=task,
        shared_tokens=torch.zeros(rows, dtype=torch.int64),
        group_index=torch.arange(rows),
    )


def some_prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 300, (length,), generator=generator).tolist() for length in lengths]


def items_of(inputs: JudgeInputs, items: Sequence[int]) -> JudgeInputs:
    """Some items of a batch of one prompt per item, in the order given, without padding that none of them needs."""
    rows = torch.tensor(items)
    width = int(inputs.attention_mask[rows].sum(-1).max())
    return replace(
        inputs,
        input_ids=inputs.input_ids[rows, -width:],
        attention_mask=inputs.attention_mask[rows, -width:],
        item_index=torch.arange(len(items)),
        swapped=inputs.swapped[rows],
        item_ids=inputs.item_ids[rows],
        shared_tokens=inputs.shared_tokens[rows],
        group_index=torch.arange(len(items)),
    )


@contextmanager
def counted_tokens(backbone: Backbone):
    """The [rows, tokens] shape of everything that runs through the decoder's body inside the block."""
    shapes: list[tuple[int, int]] = []
    handle = backbone.body.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield shapes
    finally:
        handle.remove()
