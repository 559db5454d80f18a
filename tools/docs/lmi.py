"""Generate docs/lmi.md."""

from __future__ import annotations

from tools.docs.tables import field_rows, table, unsupported_rows

from trtllm_truss.protocols.lmi import ALIASES, FIELDS, UNSUPPORTED, Parameters
from trtllm_workbench.importers.lmi import SECTIONS
from trtllm_workbench.importers.rules import OptionRule, Outcome

_INTRODUCTION = """\
# Migration from LMI, SageMaker or TGI

A body with `inputs` is parsed as in LMI's containers (DJL-Serving) and answered in their format.
This page is generated from `packages/trtllm_truss/protocols/lmi.py` and
`workbench/trtllm_workbench/importers/lmi.py` (`make docs`).

<!-- contents -->
<!-- end -->

```
$ curl localhost:8080/invocations -H 'Content-Type: application/json' \\
    -d '{"inputs": "Deep Learning is", "parameters": {"max_new_tokens": 8, "details": true}}'
```

- Without `stream` the answer is `{"generated_text": …}`, with `details` on request; a list of
  inputs returns a list.
- With `"stream": true` it is `application/jsonlines`, one token per line; the last line has
  `generated_text`, and `details` on request. With `"output_formatter": "sse"` each line is an
  event. A line is sent when the next token arrives, because only the last line has the whole text.
- `finish_reason` is `length`, `eos_token` or `stop_sequence`.
- Errors are `{"code": status, "error": message}` with an accurate status, where LMI returns 424
  for nearly everything. A failed stream ends with LMI's error token: id -1, `finish_reason`
  `error`, and the message as `error_msg`.
- At `/invocations` a body with `messages` is a chat completion and one with `prompt` a completion,
  both [OpenAI's](openai.md) in body, answer and errors, and streamed as events, where LMI streams
  lines. As in LMI, `top_logprobs: 1` and `logprobs: 1` report the chosen token.
- A prompt that is too long is refused with 400; the message begins with `This model's maximum
  context length is`.
- huggingface_hub's `InferenceClient` is recognised by its User-Agent and receives the format of
  Text Generation Inference, streamed as events, without LMI's option `tgi_compat`.

"""

_SAMPLING = """\
Tokens are drawn if `do_sample` is true, or if it is omitted and `temperature`, `top_k` or `top_p`
is set (as in LMI since 0.32); otherwise decoding is greedy, as it is at `temperature` 0 and with
`top_k` 1 in any case. [The same on each engine](engines.md#choice-of-tokens). Omitted parameters
take their defaults from `model_metadata.generation` in `config.yaml`.
"""

_IMPORT = """\
## `trtllm-truss import-lmi`

```
$ trtllm-truss import-lmi serving.properties --output config.lmi.yaml
$ trtllm-truss import-lmi variables.env --gpus 4
```

converts serving.properties, or variables such as `OPTION_*`, `HF_MODEL_ID` and
`TENSOR_PARALLEL_DEGREE` in the format of `docker run --env-file`, to a `config.yaml`, and prints
the outcome of every option on stderr. A property takes precedence over `OPTION_*`, and that over
any other variable. Everything outside LMI's scope (image, Python, secrets) comes from the Truss's
own `config.yaml`; the number of GPUs follows from the ranks.

`trtllm-truss init serving.properties`, or with the folder or repository that holds the file, writes
a whole Truss: it also reads the engine, and chooses its image and accelerator
([deploy.md](deploy.md#the-first-thing-to-type)). Of a file inside a folder or repository it takes
neither `trust_remote_code` nor `model_id`, `tokenizer` and their revisions: name the file itself,
or use the options of `init`.

A model on the Hub, or any build option, becomes `build`. With `backend=pytorch` the checkpoint
itself becomes `engine_repository` and is served through the LLM API, as is one that `init` finds
beside a serving.properties without these options. Otherwise `model_id` is a folder or prefix with
engines and becomes `engine_repository`, which needs no build options.
"""


def lmi_page() -> str:
    fields = [[f"`{name}`", meaning] for name, meaning in FIELDS.items()]
    parameters = sorted(Parameters.model_fields)
    names = [[f"`{alias}`", f"`{name}`"] for alias, name in sorted(ALIASES.items())]
    parts = [
        _INTRODUCTION + "## The body\n",
        table(["field", "meaning"], fields),
        "### `parameters`\n",
        _SAMPLING,
        table(["parameter", "default", "meaning"], field_rows(Parameters, parameters)),
        "Other names:\n",
        table(["name", "means"], names),
        "Refused by name:\n",
        table(["parameter", "passes if it is", "because"], unsupported_rows(UNSUPPORTED)),
        _IMPORT,
    ]
    for title, options in SECTIONS.items():
        parts.append(f"### {title}\n")
        parts.append(table(["option", "outcome", ""], [_option_row(option) for option in options]))
    return "\n".join(parts)


def _option_row(option: OptionRule) -> list[str]:
    sentence = option.reason
    if option.outcome is Outcome.MAPPED:
        targets = [f"`{target}`" for target in (option.target, option.prebuilt) if target]
        sentence = " or, for an existing engine, ".join(targets)
        sentence += f" ({option.reason})" if option.reason else ""
    elif option.only:
        sentence += f" ({', '.join(f'`{value}`' for value in option.only)} only)"
    sentence += f"; for a checkpoint `{option.checkpoint}`" if option.checkpoint else ""
    return [f"`{option.name}`", option.outcome.value, sentence]
