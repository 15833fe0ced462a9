"""Chat templates in the manner of well-known models, each with the control tokens its tokenizer knows."""

import copy

from tiny import tiny_tokenizer
from transformers import PreTrainedTokenizerFast


# Drops the thoughts of earlier turns, gives the last answer an empty one, has a thinking switch.
QWEN3 = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{%- set content = m.content %}{%- set thought = '' %}{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if loop.index0 > ns.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- content + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
# Opens a thought in the generation prompt and has no switch; ends turns with a control token, without a line break.
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|end|>' }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"
)
# No system turn, strict alternation.
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' + m['content'] | trim"
    " + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# Turn marks are ordinary text, nothing follows them, answers end with EOS.
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
    "{% else %}{{ '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' }}{% endif %}{% endfor %}"
)
# The last answer ends otherwise than earlier ones.
PHI = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)

CONTROLS = {
    "chatml": (None, []),
    "qwen3": (QWEN3, ["<think>", "</think>"]),
    "r1": (R1, ["<|User|>", "<|Assistant|>", "<|end|>", "<think>", "</think>"]),
    "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>"]),
    "llama2": (LLAMA2, []),
    "phi": (PHI, ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]),
}


def tokenizer_with(name: str, digits: bool = True) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with one of these templates; `plain` has none, like a base model."""
    if name == "plain":
        return tiny_tokenizer(chat_template=False, digits=digits)
    template, controls = CONTROLS[name]
    tokenizer = copy.deepcopy(tiny_tokenizer(digits=digits))
    # As in Qwen, thought tags are added tokens but no special ones.
    tokenizer.add_tokens([control for control in controls if "think" in control])
    tokenizer.add_tokens([control for control in controls if "think" not in control], special_tokens=True)
    tokenizer.chat_template = template or tokenizer.chat_template
    return tokenizer
