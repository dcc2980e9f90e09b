"""Chat templates of seven model families, written down from their public form, on tokenizers trained on the spot."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

CHATML_MARKED = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {% generation %}{{- message['content'] + '<|im_end|>' -}}{% endgeneration %}
    {%- else -%}
        {{- message['content'] + '<|im_end|>' -}}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# Begins with the text's start token, names the day, shows tools in the first question, calls as one JSON object.
LLAMA3 = """
{{- bos_token -}}
{%- if not date_string is defined -%}{%- set date_string = strftime_now('%d %b %Y') -%}{%- endif -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set system_message = messages[0]['content'] | trim -%}{%- set messages = messages[1:] -%}
{%- else -%}
    {%- set system_message = '' -%}
{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' -}}
{%- if tools -%}{{- 'Environment: ipython\\n' -}}{%- endif -%}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + date_string + '\\n\\n' + system_message + '<|eot_id|>' -}}
{%- for message in messages -%}
    {%- if message.role == 'tool' or message.role == 'ipython' -%}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' -}}
    {%- elif message.tool_calls -%}
        {%- if message.tool_calls | length != 1 -%}{{- raise_exception('one call a turn') -}}{%- endif -%}
        {%- set call = message.tool_calls[0].function -%}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eot_id|>' -}}
    {%- else -%}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}
        {%- if tools and message.role == 'user' and loop.first -%}
            {{- 'Answer with a call where one helps.\\n\\n' -}}
            {%- for tool in tools -%}{{- tool | tojson(indent=4) + '\\n\\n' -}}{%- endfor -%}
        {%- endif -%}
        {{- message.content | trim + '<|eot_id|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

# Earlier turns lose their thinking; the turns since the last real question keep it; a last turn always shows the block.
QWEN3 = """
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n\\n' -}}{%- endif -%}
    {{- '# Tools\\n<tools>' -}}
    {%- for tool in tools -%}{{- '\\n' + tool | tojson -}}{%- endfor -%}
    {{- '\\n</tools><|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- set ns = namespace(last_query=-1) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}{%- set ns.last_query = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else '' -%}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {%- set reasoning = '' -%}
        {%- if message.reasoning_content is string -%}
            {%- set reasoning = message.reasoning_content -%}
        {%- elif '</think>' in content -%}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\\n' -}}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) -%}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -}}
        {%- else -%}
            {{- content -}}
        {%- endif -%}
        {%- for call in message.tool_calls or [] -%}
            {%- if (loop.first and content) or not loop.first -%}{{- '\\n' -}}{%- endif -%}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {%- set arguments = call.function.arguments -%}
            {{- arguments if arguments is string else arguments | tojson -}}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' -}}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# Calls only where there is no content, arguments as text; an answer to a tool's output has no header of its own.
DEEPSEEK_V3 = """
{{- bos_token -}}
{%- set ns = namespace(after_tool=false, first_output=true) -%}
{%- for message in messages if message.role == 'system' -%}{{- message.content -}}{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {%- set ns.after_tool = false -%}{{- '<｜User｜>' + message.content -}}
    {%- elif message.role == 'assistant' and message.content is none -%}
        {%- set ns.after_tool = false -%}
        {{- '<｜Assistant｜><｜tool▁calls▁begin｜>' -}}
        {%- for call in message.tool_calls -%}
            {%- if not loop.first -%}{{- '\\n' -}}{%- endif -%}
            {{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' -}}
            {{- call.function.arguments + '\\n```<｜tool▁call▁end｜>' -}}
        {%- endfor -%}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' -}}
    {%- elif message.role == 'assistant' -%}
        {%- if ns.after_tool -%}
            {{- '<｜tool▁outputs▁end｜>' + message.content + '<｜end▁of▁sentence｜>' -}}
        {%- else -%}
            {{- '<｜Assistant｜>' + message.content + '<｜end▁of▁sentence｜>' -}}
        {%- endif -%}
        {%- set ns.after_tool = false -%}
    {%- elif message.role == 'tool' -%}
        {%- if not ns.after_tool -%}{{- '<｜tool▁outputs▁begin｜>' -}}{%- else -%}{{- '\\n' -}}{%- endif -%}
        {%- set ns.after_tool = true -%}
        {{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if ns.after_tool -%}{{- '<｜tool▁outputs▁end｜>' -}}{%- endif -%}
{%- if add_generation_prompt and not ns.after_tool -%}{{- '<｜Assistant｜>' -}}{%- endif -%}
"""

# The prompt opens a thinking block; finished turns have none.
DEEPSEEK_R1 = """
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}{{- '<｜User｜>' + message.content -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<｜Assistant｜>' + message.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' -}}
    {%- else -%}{{- message.content -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜><think>\\n' -}}{%- endif -%}
"""

KIMI_K2 = """
{%- if tools -%}{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' -}}{%- endif -%}
{%- for message in messages -%}
    {%- if loop.first and message.role != 'system' -%}
        {{- '<|im_system|>system<|im_middle|>You are Kimi.<|im_end|>' -}}
    {%- endif -%}
    {%- if message.role == 'user' -%}{{- '<|im_user|>user<|im_middle|>' -}}
    {%- elif message.role == 'assistant' -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}
    {%- else -%}{{- '<|im_system|>' + (message.name or message.role) + '<|im_middle|>' -}}{%- endif -%}
    {%- if message.role == 'tool' -%}{{- '## Return of ' + message.tool_call_id + '\\n' -}}{%- endif -%}
    {%- if message.content -%}{{- message.content -}}{%- endif -%}
    {%- if message.tool_calls -%}
        {{- '<|tool_calls_section_begin|>' -}}
        {%- for call in message.tool_calls -%}
            {{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' -}}
            {%- set arguments = call.function.arguments -%}
            {{- arguments if arguments is string else arguments | tojson -}}
            {{- '<|tool_call_end|>' -}}
        {%- endfor -%}
        {{- '<|tool_calls_section_end|>' -}}
    {%- endif -%}
    {{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}
"""

# Earlier answers stand behind an empty thinking block, the last one behind its own; the prompt opens the block.
KIMI_K25 = """
{%- set ns = namespace(last_answer=-1) -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}{%- set ns.last_answer = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|im_assistant|>assistant<|im_middle|>' -}}
        {%- if loop.index0 < ns.last_answer -%}{{- '<think></think>' -}}
        {%- else -%}{{- '<think>' + (message.reasoning_content or '') + '</think>' -}}{%- endif -%}
        {{- message.content -}}
    {%- else -%}
        {{- '<|im_' + message.role + '|>' + message.role + '<|im_middle|>' + message.content -}}
    {%- endif -%}
    {{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|><think>' -}}{%- endif -%}
"""

# No generation prompt at all; tools stand before the last question only; call ids have nine characters.
MISTRAL = """
{{- bos_token -}}
{%- set ns = namespace(last_user=-1) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {%- if tools and loop.index0 == ns.last_user -%}
            {{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}
        {%- endif -%}
        {{- '[INST] ' + message.content + '[/INST]' -}}
    {%- elif message.tool_calls -%}
        {{- '[TOOL_CALLS] [' -}}
        {%- for call in message.tool_calls -%}
            {%- if call.id | length != 9 -%}{{- raise_exception('call ids have nine characters') -}}{%- endif -%}
            {%- set shown = call.function | tojson -%}
            {{- shown[:-1] + ', "id": "' + call.id + '"}' -}}{{- ', ' if not loop.last else ']' + eos_token -}}
        {%- endfor -%}
    {%- elif message.role == 'assistant' -%}
        {{- ' ' + message.content + eos_token -}}
    {%- elif message.role == 'tool' -%}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + ', "call_id": "' + message.tool_call_id -}}
        {{- '"}[/TOOL_RESULTS]' -}}
    {%- else -%}{{- raise_exception('only user, assistant and tool') -}}{%- endif -%}
{%- endfor -%}
"""

GEMMA = """
{{- bos_token -}}
{%- set prefix = '' -%}
{%- if messages[0].role == 'system' -%}
    {%- set prefix = messages[0].content + '\\n\\n' -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('roles must alternate') -}}
    {%- endif -%}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}
    {{- (prefix if loop.first else '') + message.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""

_KIMI = ["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"]
_KIMI_CALLS = [
    f"<|tool_call{name}|>" for name in ("s_section_begin", "s_section_end", "_begin", "_argument_begin", "_end")
]
_BRACKETS = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
_SPECIAL: dict[str, tuple[str, list[str]]] = {
    "chatml": (CHATML, ["<|im_start|>", "<|im_end|>"]),
    "chatml-marked": (CHATML_MARKED, ["<|im_start|>", "<|im_end|>"]),
    "llama3": (LLAMA3, ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]),
    "qwen3": (QWEN3, ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]),
    "deepseek-v3": (
        DEEPSEEK_V3,
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
        + [f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")]
        + [f"<｜tool▁{name}｜>" for name in ("outputs▁begin", "outputs▁end", "output▁begin", "output▁end")],
    ),
    "deepseek-r1": (
        DEEPSEEK_R1,
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"],
    ),
    "kimi-k2": (
        KIMI_K2,
        [*_KIMI, *_KIMI_CALLS],
    ),
    "kimi-k2.5": (
        KIMI_K25,
        [*_KIMI, "<think>", "</think>"],
    ),
    "mistral": (
        MISTRAL,
        ["<s>", "</s>", "[TOOL_CALLS]", *_BRACKETS],
    ),
    "gemma": (GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]),
}
_BOS = {
    "llama3": "<|begin_of_text|>",
    "deepseek-v3": "<｜begin▁of▁sentence｜>",
    "deepseek-r1": "<｜begin▁of▁sentence｜>",
    "mistral": "<s>",
    "gemma": "<bos>",
}
_EOS = {"mistral": "</s>", "gemma": "<eos>", "llama3": "<|eot_id|>"}
_SENTENCEPIECE = {"mistral", "gemma"}

NAMES = tuple(_SPECIAL)

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Llama-3, Qwen and DeepSeek cut text into words: a run of newlines is one word, whatever follows it."""

_TEXTS = [
    "The weather in Berlin is fine today, said the user to the assistant, and the model answered: yes.\n\n",
    'system user assistant model tool ipython {"name": "weather", "arguments": {"city": "Oslo"}}\n',
    "def add(a, b):\n    return a + b\n\n\n# What is two plus two? Four. Größe, naïve, 東京, 🙂\n",
]


@cache
def make_tokenizer(name: str) -> Any:
    """A byte-level BPE (a metaspace BPE for Mistral and Gemma) of some 600 tokens with the family's template."""
    template, special = _SPECIAL[name]
    tokenizer = _sentencepiece_like() if name in _SENTENCEPIECE else _byte_level()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    if name in _BOS:
        wrapped.bos_token = _BOS[name]
    if name in _EOS:
        wrapped.eos_token = _EOS[name]
    wrapped.chat_template = template.strip()
    return wrapped


def with_template(name: str, template: str) -> Any:
    """The tokenizer of a family with another template."""
    tokenizer = make_tokenizer.__wrapped__(name)
    tokenizer.chat_template = template
    return tokenizer


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_TEXTS * 8, trainer)
    return tokenizer


def _sentencepiece_like() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator([text.replace(" ", "▁") for text in _TEXTS * 8], trainer)
    return tokenizer
