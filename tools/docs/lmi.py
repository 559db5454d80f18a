"""docs/lmi.md, from the code."""

from __future__ import annotations

from tools.docs.tables import field_rows, table, unsupported_rows

from trtllm_truss.protocols.lmi.body import FIELDS
from trtllm_truss.protocols.lmi.parameters import ALIASES, UNSUPPORTED, Parameters
from trtllm_truss.settings.lmi_import.option import Fate, Option
from trtllm_truss.settings.lmi_import.options import SECTIONS

_INTRODUCTION = """\
# For those who come from LMI, SageMaker or TGI

A body with `inputs` is read as LMI's containers (DJL-Serving) read it, and answered in their
shapes. This page is generated from `packages/trtllm_truss/protocols/lmi/` and
`packages/trtllm_truss/settings/lmi_import/` (`make docs`).

```
$ curl localhost:8080/invocations -H 'Content-Type: application/json' \\
    -d '{"inputs": "Deep Learning is", "parameters": {"max_new_tokens": 8, "details": true}}'
```

- Without `stream` the answer is `{"generated_text": …}`, with `details` when asked for; a list of
  inputs gives a list.
- With `"stream": true` it is `application/jsonlines`, one token a line; the last line has
  `generated_text`, and `details` when asked for. With `"output_formatter": "sse"` each line is an
  event. A line is sent when the next token is there, for only the last one holds the whole text.
- `finish_reason` is `length`, `eos_token` or `stop_sequence`.
- Errors are `{"code": status, "error": message}` with the status that is true, where LMI answers
  424 to nearly everything. A stream that broke off ends with LMI's token of an error: id -1,
  `finish_reason` `error`, and the message as `error_msg`.
- huggingface_hub's `InferenceClient` is recognised by its User-Agent and gets the shapes of Text
  Generation Inference, streamed as events. LMI's option `tgi_compat` is not needed for that.

"""

_SAMPLING = """\
Tokens are drawn where `do_sample` is true, or left out while `temperature`, `top_k` or `top_p` is
given (as LMI does since 0.32); otherwise the likeliest token wins. Defaults under
`model_metadata.generation` in `config.yaml` hold for parameters that are left out.
"""

_IMPORT = """\
## `trtllm-truss import-lmi`

```
$ trtllm-truss import-lmi serving.properties --output config.lmi.yaml
$ trtllm-truss import-lmi variables.env --gpus 4
```

turns serving.properties, or `OPTION_*`, `HF_MODEL_ID`, `TENSOR_PARALLEL_DEGREE` and the like as
`docker run --env-file` takes them, into a `config.yaml`, and prints on stderr what became of every
option. A property wins over `OPTION_*`, and this over any other variable. Everything that LMI does
not know of (image, Python, secrets) is taken from the Truss's own `config.yaml`; the number of GPUs
follows from the ranks.

A model on the Hub, or any option of a build, gives `build`; else `model_id` is taken for a folder
or prefix with engines and becomes `engine_repository`, and options of the build are not needed.
"""


def lmi_page() -> str:
    """The page."""
    fields = [[f"`{name}`", meaning] for name, meaning in FIELDS.items()]
    names = [[f"`{alias}`", f"`{name}`"] for alias, name in sorted(ALIASES.items())]
    parts = [
        _INTRODUCTION + "## The body\n",
        table(["field", "meaning"], fields),
        "### `parameters`\n",
        _SAMPLING,
        table(["parameter", "default", "meaning"], field_rows(Parameters, Parameters.model_fields)),
        "Other names:\n",
        table(["name", "means"], names),
        "Refused by name:\n",
        table(["parameter", "passes if it is", "because"], unsupported_rows(UNSUPPORTED)),
        _IMPORT,
    ]
    for title, options in SECTIONS.items():
        parts.append(f"### {title}\n")
        parts.append(table(["option", "fate", ""], [_option_row(option) for option in options]))
    return "\n".join(parts)


def _option_row(option: Option) -> list[str]:
    sentence = option.why
    if option.fate is Fate.MAPPED:
        targets = [f"`{target}`" for target in (option.target, option.prebuilt) if target]
        sentence = " or, for an engine that is there, ".join(targets)
        sentence += f" ({option.why})" if option.why else ""
    elif option.only:
        sentence += f" ({', '.join(f'`{value}`' for value in option.only)} only)"
    return [f"`{option.name}`", option.fate.value, sentence]
