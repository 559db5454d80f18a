"""Chat templates and expected prompts of seven model families.

The templates were written for this project from the documented formats, with the Jinja features
that the families' templates use.
"""

from __future__ import annotations

from dataclasses import dataclass

DIALOGUE = [
    {"role": "user", "content": " Hi 🤖 "},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "2 + 2?"},
]
"""A dialogue that every family accepts: alternating turns, no system message."""

SYSTEM = {"role": "system", "content": "Be brief."}


@dataclass(frozen=True)
class Family:
    """The conversation format of one family.

    Attributes:
        template: the Jinja source.
        tokens: its special tokens.
        bos: the token that the tokenizer adds before a text; None if it adds none.
        eos: the end token.
        prompt: the expected prompt of `DIALOGUE`.
        has_system: accepts system messages.
        has_tools: accepts tools.
    """

    template: str
    tokens: tuple[str, ...]
    bos: str | None
    eos: str
    prompt: str
    has_system: bool = True
    has_tools: bool = False


LLAMA_3 = Family(
    template="""\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{%- if tools is not none or system_message %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
    {%- if tools is not none %}
        {{- 'Functions:\\n' }}
        {%- for tool in tools %}
            {{- tool | tojson(indent=4) }}
            {{- '\\n\\n' }}
        {%- endfor %}
    {%- endif %}
    {{- system_message + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model calls one tool at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' + call.arguments | tojson + '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    tokens=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    prompt="<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi 🤖<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n2 + 2?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    has_tools=True,
)

LLAMA_2 = Family(
    template="""\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Roles must alternate: user, assistant, user, …') }}{% endif %}\
{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}\
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}\
{% endif %}{% endfor %}""",
    tokens=("<s>", "</s>"),
    bos="<s>",
    eos="</s>",
    prompt="<s>[INST] Hi 🤖 [/INST] Hello! </s><s>[INST] 2 + 2? [/INST]",
)

MISTRAL = Family(
    template="""\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(users=loop_messages | selectattr("role", "equalto", "user") | list | length,
                       seen=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message.role == "user" %}
        {%- set ns.seen = ns.seen + 1 %}
        {%- if tools is not none and ns.seen == ns.users %}
            {{- "[AVAILABLE_TOOLS] " + tools | tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message.content + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message.content + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson }}
            {%- if not loop.last %}{{- ", " }}{%- endif %}
        {%- endfor %}
        {{- "]" + eos_token }}
    {%- elif message.role == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- " " + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    tokens=("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]"),
    bos="<s>",
    eos="</s>",
    prompt="<s>[INST]  Hi 🤖 [/INST] Hello!</s>[INST] 2 + 2?[/INST]",
    has_tools=True,
)

QWEN = Family(
    template="""\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    tokens=("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    bos=None,
    eos="<|im_end|>",
    prompt="<|im_start|>user\n Hi 🤖 <|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n",
    has_tools=True,
)

GEMMA = Family(
    template="""\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Roles must alternate') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    tokens=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    bos="<bos>",
    eos="<eos>",
    prompt="<bos><start_of_turn>user\nHi 🤖<end_of_turn>\n<start_of_turn>model\nHello!"
    "<end_of_turn>\n<start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n",
    has_system=False,
)

PHI = Family(
    template="""\
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}\
{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}\
{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}\
{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    tokens=("<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    bos="<s>",
    eos="<|endoftext|>",
    prompt="<|user|>\n Hi 🤖 <|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\n2 + 2?<|end|>\n"
    "<|assistant|>\n",
)

FAMILIES = {
    "llama-3": LLAMA_3,
    "llama-2": LLAMA_2,
    "mistral": MISTRAL,
    "qwen": QWEN,
    "gemma": GEMMA,
    "phi": PHI,
}
"""The seventh, ChatML, comes from SmolLM2's file."""
