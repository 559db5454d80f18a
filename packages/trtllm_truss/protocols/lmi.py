"""LMI's protocol, `{"inputs", "parameters", "stream"}`, for SageMaker and TGI clients.

Written against the schema of DJL-Serving's LMI containers
(https://docs.djl.ai/master/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html)
and, for clients of Text Generation Inference, the types of huggingface_hub's `InferenceClient`.
Responses and errors are JSON, JSON lines or server-sent events. The fields under `parameters` are
those of LMI, of its TensorRT-LLM handler and of TGI.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest, Overloaded, QueueFull, RequestError, TrussError
from trtllm_truss.protocols.base import (
    MAX_PROMPTS,
    Call,
    CollectedAnswer,
    Defaults,
    WholeWriter,
    sse_event,
)
from trtllm_truss.protocols.fields import (
    UNSERVED,
    Finite,
    Unsupported,
    body_field,
    check_length,
    invalid_request,
    named_once,
    refuse_unsupported,
    request_arguments,
    schema_guide,
    text_guide,
    unknown_field,
    with_defaults,
    with_request_fields,
    wrong,
)
from trtllm_truss.request_fields import INT32_MAX, SAMPLING, Sampling, rows_of
from trtllm_truss.requests import (
    AnswerItem,
    FinishReason,
    GenerationEnd,
    GenerationRequest,
    Guide,
    Token,
)
from trtllm_truss.validation import Strict, is_unicode, shown


class LmiForm(str, enum.Enum):
    """Format of a response; values are LMI's output formatters."""

    JSON = "json"
    JSON_LINES = "jsonlines"
    EVENTS = "sse"

    @property
    def media_type(self) -> str:
        return _MEDIA_TYPES[self]


_MEDIA_TYPES = {
    LmiForm.JSON: "application/json",
    LmiForm.JSON_LINES: "application/jsonlines",
    LmiForm.EVENTS: "text/event-stream",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LmiCall:
    """A parsed LMI body.

    Attributes:
        requests: one per input, each with a prompt.
        listed: the inputs are a list, so the response is a list.
        form: format of the response; JSON for a list.
        tgi: use Text Generation Inference's response shapes.
        return_full_text: prefix `generated_text` with the input.
    """

    requests: tuple[GenerationRequest, ...]
    listed: bool
    form: LmiForm
    tgi: bool
    details: bool
    return_full_text: bool


ALIASES = {
    "stop": "stop_sequences",
    "request_output_len": "max_new_tokens",
    **{
        tensor: name
        for row in SAMPLING
        if (name := row.name_in("lmi"))
        for tensor in row.tensors
        if tensor != name
    },
    "ignore_eos": "ignore_eos_token",
}
"""Fields by alias: TGI's names, the backend's tensors, which LMI forwards, and ours."""

_LISTS_OF_TEXTS = ("stop_sequences", "bad_sequences")

UNSUPPORTED = {
    **UNSERVED,
    "adapter_id": Unsupported("adapters are chosen by lora_task_id"),
    "best_of": Unsupported("one sequence is generated", (0, 1)),
    "early_stopping": Unsupported("beam search is not offered here", (False,)),
    "logit_bias": Unsupported("biases are not offered here", ({},)),
    "logprobs": Unsupported("details include the log probabilities", (0, 1)),
    "n": Unsupported("one sequence is generated", (1,)),
    "num_beams": Unsupported("beam search is not offered here", (1,)),
    "prompt_logprobs": Unsupported("log probabilities of prompts are not offered here", (0,)),
    "streaming": Unsupported("use stream, next to parameters", (True,)),
    "top_n_tokens": Unsupported("only the chosen token is returned", (0,)),
    "watermark": Unsupported("text is not watermarked", (False,)),
}


class Grammar(Strict):
    """TGI's guide: `json` takes a schema, `json_schema` one under `schema`, `regex` a string."""

    type: str
    value: Any


_GRAMMARS = ("json", "json_schema", "regex")


@with_request_fields("lmi")
class Parameters(Strict):
    """The supported parameters, with the defaults of LMI's TensorRT-LLM handler."""

    max_new_tokens: int = Field(
        30, ge=1, le=INT32_MAX, description="Maximum number of generated tokens."
    )
    do_sample: bool | None = Field(
        None,
        description="True samples from the top 5 tokens and a probability of 0.85 at temperature "
        "0.8, unless these are set; false is greedy; by default it follows from the other "
        "fields.",
    )
    top_p: Finite | None = body_field(
        "top_p", description="Cumulative probability to sample from; 0 sets no limit."
    )
    grammar: Grammar | None = Field(
        None, description="The format of the output: type `json`, `json_schema` or `regex`."
    )
    details: bool | None = Field(None, description="Return the tokens and the finish reason.")
    decoder_input_details: bool = Field(
        False,
        description="Return the input's tokens as `prefill`, without log probabilities; requires "
        "details, and no stream.",
    )
    return_full_text: bool = Field(False, description="Prefix `generated_text` with the input.")
    output_formatter: LmiForm | None = Field(
        None,
        strict=False,
        description="`json`, `jsonlines` or `sse`; the default depends on `stream`.",
    )


def read_parameters(sent: Mapping[str, Any], defaults: Mapping[str, Any]) -> Parameters:
    """Validate the parameters of a body; null counts as missing.

    Args:
        defaults: values of missing parameters, by the predict body's field names.

    Raises:
        InvalidRequest: a parameter is unknown, unsupported, of the wrong type or out of range.
    """
    known = [*Parameters.model_fields, *ALIASES, *UNSUPPORTED]
    given = {name: value for name, value in sent.items() if value is not None or name not in known}
    for name in [name for name in given if name in UNSUPPORTED]:
        refuse_unsupported(name, given.pop(name), UNSUPPORTED, within="parameters.")
    values = named_once(given, ALIASES, _LISTS_OF_TEXTS, within="parameters.")
    if "max_tokens" in defaults:
        values.setdefault("max_new_tokens", defaults["max_tokens"])
    try:
        return Parameters.model_validate(with_defaults(values, defaults, Parameters, "lmi"))
    except ValidationError as error:
        found = invalid_request(error, known, UNSUPPORTED)
        raise InvalidRequest(f"parameters: {found.message}", param=found.param) from None


def read_grammar(grammar: Grammar | None) -> Guide | None:
    """Convert a grammar to a guide.

    Raises:
        InvalidRequest: the type is unknown, or the value does not match it.
    """
    if grammar is None:
        return None
    path, value = "parameters.grammar", grammar.value
    if grammar.type not in _GRAMMARS:
        raise wrong(f"{path}.type", grammar.type, f"one of {', '.join(_GRAMMARS)}", "grammar")
    if grammar.type == "regex":
        return text_guide("regex", value, f"{path}.value", "grammar")
    if grammar.type == "json_schema" and isinstance(value, dict):
        value = value.get("schema", value)
    return schema_guide(value, f"{path}.value", "grammar", as_text=True)


def choose_sampling(sampling: Sampling, parameters: Parameters) -> None:
    """Apply LMI's `do_sample` with its defaults; a `top_p` of 0 sets no limit.

    LMI samples since 0.32 if a temperature or a limit is set, as `decoding.meant` implements.
    """
    if parameters.do_sample is False:
        sampling.top_k = 1
    if parameters.do_sample:
        sampling.temperature = 0.8 if sampling.temperature is None else sampling.temperature
        sampling.top_k = 5 if sampling.top_k is None else sampling.top_k
        sampling.top_p = 0.85 if sampling.top_p is None else sampling.top_p
    if sampling.top_p == 0:
        sampling.top_p = None


FIELDS = {
    "inputs": "The text to continue, or a list of texts; a list is not streamed.",
    "parameters": "An object with the fields below.",
    "stream": "JSON lines, or server-sent events with `output_formatter`; default: false.",
    "model": "No effect: one model is served.",
    "model_name": "No effect: one model is served.",
}
"""The fields besides `parameters`."""

_NAMES = {
    "prompt": "inputs",
    "max_tokens": "parameters.max_new_tokens",
    "guide": "parameters.grammar",
    **{row.attribute: f"parameters.{name}" for name, row in rows_of("lmi").items()},
}
"""LMI's names of request attributes."""


def parse_lmi(body: Mapping[str, Any], defaults: Mapping[str, Any], *, tgi: bool) -> LmiCall:
    """Parse an LMI body.

    Args:
        defaults: values of missing fields, by the predict body's field names; they override LMI's
            defaults.
        tgi: use Text Generation Inference's response shapes, like LMI's option `tgi_compat`.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of range,
            or two contradict each other.
    """
    for name in body:
        if name in Parameters.model_fields or name in ALIASES:
            raise InvalidRequest(f"{name} is next to parameters; send it inside.", param=name)
        if name not in FIELDS:
            raise unknown_field(name, FIELDS)
    if "inputs" not in body:
        raise InvalidRequest(
            "inputs is missing; send a text, or OpenAI's prompt or messages.",
            param="inputs",
        )
    inputs, listed = _inputs(body.get("inputs"))
    sent = _object(body.get("parameters"))
    parameters = read_parameters(sent, defaults)
    form = _form(body.get("stream"), parameters.output_formatter, tgi)
    details = tgi if parameters.details is None else parameters.details
    if listed and form is not LmiForm.JSON:
        raise InvalidRequest(
            "inputs is a list, which cannot be streamed; send one text, or turn off stream.",
            param="inputs",
        )
    arguments = _generation_arguments(sent, parameters)
    _check_agreement(parameters, arguments["sampling"].min_tokens, form, details)
    return LmiCall(
        requests=tuple(
            GenerationRequest(
                prompt=text,
                token_details=details or form is not LmiForm.JSON,
                **arguments,
            )
            for text in inputs
        ),
        listed=listed,
        form=form,
        tgi=tgi,
        details=details,
        return_full_text=parameters.return_full_text,
    )


def _generation_arguments(sent: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Return the arguments of `GenerationRequest` that do not depend on the input."""
    chosen = {ALIASES.get(name, name) for name, value in sent.items() if value is not None}
    arguments = request_arguments(parameters, "lmi")
    choose_sampling(arguments["sampling"], parameters)
    return {
        **arguments,
        "max_tokens": parameters.max_new_tokens,
        "max_tokens_given": "max_new_tokens" in chosen,
        "guide": read_grammar(parameters.grammar),
        "prompt_details": parameters.decoder_input_details,
        "names": _NAMES,
    }


def _inputs(inputs: Any) -> tuple[list[str], bool]:
    listed = isinstance(inputs, list)
    texts = inputs if listed else [inputs]
    check_length("inputs", texts, MAX_PROMPTS, param="inputs")
    for place, text in enumerate(texts):
        path = f"inputs[{place}]" if listed else "inputs"
        if not isinstance(text, str) or not text:
            raise InvalidRequest(
                f"{path} is {shown(text)}; it must be a non-empty string.", param="inputs"
            )
        if not is_unicode(text):
            raise InvalidRequest(
                f"{path} contains a lone surrogate, which is not valid Unicode; send whole "
                "characters.",
                param="inputs",
            )
    if not texts:
        raise InvalidRequest("inputs is []; it must not be empty.", param="inputs")
    return texts, listed


def _object(parameters: Any) -> dict[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidRequest(
            f"parameters is {shown(parameters)}; it must be an object.", param="parameters"
        )
    return parameters


def _form(stream: Any, formatter: LmiForm | None, tgi: bool) -> LmiForm:
    if not isinstance(stream, bool | None):
        raise InvalidRequest(
            f"stream is {shown(stream)}; it must be true or false.", param="stream"
        )
    if not stream:
        return formatter or LmiForm.JSON
    if formatter is LmiForm.JSON:
        raise InvalidRequest(
            "parameters.output_formatter is json, but stream is true; choose jsonlines or sse.",
            param="output_formatter",
        )
    return formatter or (LmiForm.EVENTS if tgi else LmiForm.JSON_LINES)


def _check_agreement(
    parameters: Parameters, min_length: int | None, form: LmiForm, details: bool
) -> None:
    if parameters.decoder_input_details and (not details or form is not LmiForm.JSON):
        raise InvalidRequest(
            "parameters.decoder_input_details is true; it needs details, and no stream.",
            param="decoder_input_details",
        )
    if (min_length or 0) > parameters.max_new_tokens:
        raise InvalidRequest(
            f"parameters.min_length is {min_length}; it must be at most max_new_tokens, "
            f"{parameters.max_new_tokens}.",
            param="min_length",
        )


Json = dict[str, Any]

NO_TOKEN = Token(id=-1, text="", log_prob=-1, special=True)
"""LMI's placeholder in a line without a token."""


class LmiAnswer(WholeWriter):
    """Collects the choices of one call."""

    def __init__(self, call: LmiCall) -> None:
        super().__init__()
        self._call = call

    def body(self) -> Json | list[Json]:
        """Return an object, or a list for a list of inputs and for TGI clients."""
        objects = [
            self._object(request.prompt or "", *self.ended(index))
            for index, request in enumerate(self._call.requests)
        ]
        return objects if self._call.listed or self._call.tgi else objects[0]

    def _object(self, prompt: str, answer: CollectedAnswer, end: GenerationEnd) -> Json:
        text = prompt + answer.text if self._call.return_full_text else answer.text
        whole: Json = {"generated_text": text}
        if self._call.details:
            whole["details"] = self._details(prompt, answer.tokens, end)
        return whole

    def _details(self, prompt: str, tokens: list[Token], end: GenerationEnd) -> Json:
        tgi = self._call.tgi
        head: Json = {
            "finish_reason": finish_reason(end),
            "generated_tokens": end.usage.completion_tokens,
        }
        generated = [token_object(token, tgi=tgi) for token in tokens]
        prefill = [token_object(token, tgi=tgi) for token in end.prompt]
        if tgi:
            return {**head, "seed": end.seed, "prefill": prefill, "tokens": generated}
        details: Json = {**head, "inputs": prompt, "tokens": generated}
        return {**details, "prefill": prefill} if prefill else details


class LmiStream:
    """Encodes the response of one call as lines, one per token.

    The last line has the last token and the whole text, so each token is held back until the next
    one or the end.
    """

    def __init__(self, call: LmiCall) -> None:
        self._call = call
        self._text: list[str] = []
        self._held: Token | None = None
        self._sent = 0

    def push(self, item: AnswerItem) -> bytes:
        """Encode the lines completed by the next item."""
        if isinstance(item, GenerationEnd):
            return self._line(self._held or NO_TOKEN, self._ending(item))
        self._text.append(item.text)
        lines = b""
        for token in item.tokens:
            lines += self._release()
            self._held = token
        return lines

    def end(self) -> bytes:
        return b""

    def error(self, error: TrussError) -> bytes:
        """Encode the last lines of an aborted response."""
        return self._release() + self._encoded(error_line(error, tgi=self._call.tgi))

    def _release(self) -> bytes:
        if self._held is None:
            return b""
        token, self._held = self._held, None
        empty = {"generated_text": None, "details": None} if self._call.tgi else {}
        return self._line(token, empty)

    def _line(self, token: Token, ending: dict[str, Any]) -> bytes:
        self._sent += 1
        index = {"index": self._sent} if self._call.tgi else {}
        return self._encoded({**index, "token": token_object(token, tgi=self._call.tgi), **ending})

    def _ending(self, finish: GenerationEnd) -> dict[str, Any]:
        prompt = self._call.requests[0].prompt or ""
        text = "".join(self._text)
        ending: dict[str, Any] = {
            "generated_text": prompt + text if self._call.return_full_text else text
        }
        if self._call.details:
            details: dict[str, Any] = {
                "finish_reason": finish_reason(finish),
                "generated_tokens": finish.usage.completion_tokens,
            }
            if self._call.tgi:
                details.update(input_length=finish.usage.prompt_tokens, seed=finish.seed)
            else:
                details["inputs"] = prompt
            ending["details"] = details
        elif self._call.tgi:
            ending["details"] = None
        return ending

    def _encoded(self, line: dict[str, Any]) -> bytes:
        if self._call.form is LmiForm.EVENTS:
            return sse_event(line)
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def token_object(token: Token, *, tgi: bool) -> dict[str, Any]:
    """Encode one token; LMI's `special_token` is present only if true."""
    if tgi:
        return {
            "id": token.id,
            "text": token.text,
            "logprob": token.log_prob,
            "special": token.special,
        }
    plain: dict[str, Any] = {"id": token.id, "text": token.text, "log_prob": token.log_prob}
    return {**plain, "special_token": True} if token.special else plain


def finish_reason(finish: GenerationEnd) -> str:
    """Return `length`, `eos_token` or `stop_sequence`."""
    if finish.reason is FinishReason.LENGTH:
        return "length"
    return "eos_token" if finish.stop_word is None else "stop_sequence"


def error_body(error: TrussError, *, tgi: bool) -> dict[str, Any]:
    """Encode an error response.

    LMI returns 424 for nearly all errors; `code` is the actual status. TGI clients choose their
    exception by `error_type`.
    """
    if tgi:
        return {"error": error.message, "error_type": _kind(error)}
    return {"code": error.status, "error": error.message}


def error_line(error: TrussError, *, tgi: bool) -> dict[str, Any]:
    """Encode the last line of an aborted stream: LMI's error token with the message."""
    if tgi:
        return error_body(error, tgi=True)
    return {
        "token": {**token_object(NO_TOKEN, tgi=False), "error_msg": error.message},
        "generated_text": "",
        "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
    }


def _kind(error: TrussError) -> str:
    if isinstance(error, RequestError):
        return "validation"
    return "overloaded" if isinstance(error, QueueFull | Overloaded) else "generation"


@dataclass(frozen=True, slots=True)
class LmiAdapter:
    """LMI's protocol or, with `tgi`, that of Text Generation Inference."""

    defaults: Defaults
    tgi: bool = False
    name: str = "lmi"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = parse_lmi(body, self.defaults, tgi=self.tgi)
        writer = LmiAnswer(call) if call.form is LmiForm.JSON else LmiStream(call)
        return Call(call.requests, writer, call.form.media_type)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error, tgi=self.tgi)
