"""An engine whose model calls a tool, reads its result and remembers it.

`python -m tests.clients.scripted FOLDER` writes it, in the project's environment. The chat template
determines the state of the conversation and ends the prompt with it, and the fake engine answers by
that suffix. The server provides prompt, parser, events and the reading of earlier turns.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

QUESTION = "Print forty and two. Please use the tool."
COMMAND = "printf %s-%s forty two"
RESULT = "forty-two"
"""Not in the question, so that it can only come from the tool."""

READ = "The tool says forty-two."
AGAIN = "What did it say? Please remember."
KNOWN = "It said forty-two, as before."
OTHER = "Fine."
EDIT = f"I write it down.\n\nanswer.txt\n```\n{RESULT}\n```\n"
"""Without a tool: a file in the form that aider reads."""

CALLS = {
    "exec_command": {"cmd": COMMAND},
    "Bash": {"command": COMMAND, "description": "Print"},
    "bash": {"command": COMMAND, "description": "Print"},
    "run_shell_command": {"command": COMMAND, "is_background": False},
    "run_commands": {"commands": [COMMAND]},
    "say": {},
}
"""The arguments by the tool that a client offers: Codex, Claude Code and Continue, opencode,
Copilot and pi, Qwen Code, Cline, and the tests' own agents."""

_ENDING = "<|im_start|>state\n{state}<|im_end|>\n<|im_start|>assistant\n"

TEMPLATE = """\
{%- set seen = namespace(state='other') -%}
{%- set names = (tools or []) | map(attribute='function') | map(attribute='name') | list -%}
<|im_start|>system
{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% if message.role in ('tool', 'assistant') and 'RESULT' in (message.content or '') -%}
{%- set seen.state = 'read' -%}
{%- elif message.role == 'user' and 'AGAIN' in message.content -%}
{%- set seen.state = 'known' if seen.state in ('read', 'known') else 'forgotten' -%}
{%- elif message.role == 'user' and 'QUESTION' in message.content -%}
{%- set seen.state = 'asked' -%}
{%- endif -%}
{%- endfor -%}
{%- if seen.state == 'asked' -%}
{%- for name in CALLS if name in names and seen.state == 'asked' -%}
{%- set seen.state = 'call ' + name -%}
{%- endfor -%}
{%- endif -%}
<|im_start|>state
{{ seen.state }}<|im_end|>
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_LONG = 262_144
_LIMITS = {"max_seq_len": _LONG, "max_input_len": _LONG - 1, "max_num_tokens": _LONG}


def main(folder: Path) -> None:
    """Write the engine and print the path of its config.yaml."""
    # The clients' environment, which imports this module, does not have their dependencies.
    from tests.fakes.triton import config_for, write_engine
    from tests.support.smollm2 import write_smollm2_tokenizer

    from trtllm_truss.text.tokenizer import load_tokenizer

    template = TEMPLATE
    for name, text in (("RESULT", RESULT), ("AGAIN", AGAIN), ("QUESTION", QUESTION)):
        template = template.replace(f"'{name}'", f"'{text}'")
    template = template.replace("CALLS", json.dumps([*CALLS]))
    tokenizer = load_tokenizer(write_smollm2_tokenizer(folder / "tokenizer", template))
    answers = {"read": READ, "known": KNOWN, "asked": EDIT}
    for name, arguments in CALLS.items():
        call = json.dumps({"name": name, "arguments": arguments})
        answers[f"call {name}"] = f"I use it.\n<tool_call>\n{call}\n</tool_call>"
    scripts = [(_ENDING.format(state=state), None, answer) for state, answer in answers.items()]
    encoded = [
        (
            tokenizer.encode(ending, add_special_tokens=False),
            guide,
            tokenizer.encode(answer, add_special_tokens=False),
        )
        for ending, guide, answer in [*scripts, ("", None, OTHER)]
    ]
    file = folder / "scripts.json"
    file.write_text(json.dumps(encoded))
    engine = write_engine(folder / "engine", limits=_LIMITS, scripts=file)
    sys.stdout.write(f"{config_for(engine, tokenizer_repository=str(folder / 'tokenizer'))}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
