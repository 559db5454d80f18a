"""Checks of answers: functions of a `ServedModel`.

They return `Passed`, or raise `Failed` or `Skipped`. They check exact text, whole characters,
stop words, seeds and temperatures; whole and streamed responses of each API with the same text, in
its format; guided decoding and log probabilities; and bodies that must be refused, each with the
name of the field at fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from trtllm_truss.releases import MODEL_NAME
from trtllm_workbench.selftest.calls import EVENTS, PREDICT, Api, HttpReply
from trtllm_workbench.selftest.served_model import (
    INVOCATIONS,
    PROMPTS,
    Failed,
    Passed,
    ServedModel,
    Skipped,
    expect,
    greedy_body,
)

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_WORD_CHARACTERS = 4
_LEAST_TEXT = 2 * _WORD_CHARACTERS
_ENGINE_TOKENS = 12


def exact_text(model: ServedModel) -> Passed:
    """Compare streamed text with the tokenizer's decoding of the same answer's ids."""
    for answer in model.answers:
        decoded = model.decode(answer.ids)
        for name, text in (("the text", answer.text), ("the joined chunks", answer.joined)):
            if text != decoded:
                raise Failed(
                    f"{name} {text!r} of the ids {answer.ids} differ from the tokenizer's "
                    f"decoding, {decoded!r}"
                )
    tokens = sum(len(answer.ids) for answer in model.answers)
    return Passed(
        f"{len(model.answers)} answers of {tokens} tokens equal the decoding of all ids",
        {"tokens": tokens},
    )


def whole_characters(model: ServedModel) -> Passed:
    """Look for U+FFFD anywhere except at the end of an answer that `max_tokens` truncated."""
    for answer in model.answers:
        text = answer.text.rstrip(_REPLACEMENT) if answer.cut_short else answer.text
        if (place := text.find(_REPLACEMENT)) >= 0:
            raise Failed(
                f"the engine emits half characters: character {place} of its answer is U+FFFD "
                f"(ids {answer.ids[:16]}); check that engine and tokenizer belong together"
            )
    return Passed("no U+FFFD inside an answer")


def forms_agree(model: ServedModel) -> Passed:
    """Compare the formats of predict: chunks, events, one body."""
    for answer in model.answers:
        streamed = model.greedy(answer.prompt)
        events = expect(model.api.post(PREDICT, greedy_body(answer.prompt), EVENTS)).events()
        last = events[-1]
        if "finish_reason" not in last:
            raise Failed(f"the last event of the stream is {last}; it must end the answer")
        texts = {
            "streamed": streamed.text,
            "events": "".join(event.get("text", "") for event in events),
            "whole": model.greedy(answer.prompt, stream=False).json()["text"],
            "/invocations": answer.text,
        }
        if len(set(texts.values())) > 1:
            raise Failed(f"greedy answers to one prompt differ: {texts}")
    return Passed("streamed, as events, whole and by /invocations: the same text")


def stop_words(model: ServedModel) -> Passed:
    """Stop an answer at a word from its middle."""
    whole = model.greedy(stream=False).json()["text"]
    if len(whole) < _LEAST_TEXT:
        raise Skipped(f"the answer, {whole!r}, is too short to be stopped")
    middle = len(whole) // 2
    word = whole[middle : middle + _WORD_CHARACTERS]
    expected = whole.partition(word)[0]
    for stream in (True, False):
        reply = model.greedy(stop_words=[word], stream=stream)
        text = reply.text if stream else reply.json()["text"]
        if word in text:
            raise Failed(f"stop_words {[word]} did not stop the answer {text!r}")
        if text != expected:
            raise Failed(f"stop_words {[word]} left {text!r} instead of {expected!r}")
        if not stream and (reason := reply.json()["finish_reason"]) != "stop":
            raise Failed(f"finish_reason is {reason!r} after a stop word; it must be 'stop'")
    return Passed(f"the word {word!r} ends the answer just before it")


def engine_stop_words(model: ServedModel) -> Passed:
    """Send a stop word and an end id to the engine itself."""
    ids = model.direct.generate(model.prompt_ids, _ENGINE_TOKENS).ids
    if len(ids) < _ENGINE_TOKENS:
        raise Failed(
            f"the engine generated {len(ids)} of {_ENGINE_TOKENS} tokens although nothing ends it"
        )
    word = ids[_ENGINE_TOKENS // 2]
    place = ids.index(word)
    stopped = model.direct.generate(model.prompt_ids, _ENGINE_TOKENS, stop_words=[[word]]).ids
    if word not in stopped and len(stopped) == _ENGINE_TOKENS:
        raise Skipped(f"the engine's greedy answers differ: {ids} and {stopped}")
    if word in stopped[:-1] or len(stopped) > place + 1:
        raise Failed(
            f"the engine ignores stop_words_list: it generated {len(stopped)} tokens although id "
            f"{word} at place {place + 1} is a stop word; compare the tensor with the template"
        )
    ended = model.direct.generate(model.prompt_ids, _ENGINE_TOKENS, end_id=word).ids
    if word in ended or len(ended) > place:
        raise Failed(
            f"the engine ignores end_id: it generated {len(ended)} tokens although id {word} at "
            f"place {place + 1} ends the answer"
        )
    return Passed(f"ended after {len(stopped)} of {_ENGINE_TOKENS} tokens; by end_id, {len(ended)}")


def seeds(model: ServedModel) -> Passed:
    """Sample answers with equal and with different seeds."""

    def draw(seed: int) -> str:
        body = {"prompt": PROMPTS[0], "max_tokens": 12, "seed": seed, "temperature": 1.0}
        return expect(model.api.post(PREDICT, {**body, "top_p": 1.0})).text

    drawn = [draw(seed) for seed in (1, 2, 3)]
    for seed, text in enumerate(drawn, 1):
        if (again := draw(seed)) != text:
            raise Failed(f"seed {seed} gave {text!r} and then {again!r}")
    return Passed(f"equal seeds, equal texts; 3 seeds, {len(set(drawn))} texts")


def temperature(model: ServedModel) -> Passed:
    """Compare seeds at temperatures 0 and 1, with the `top_p` that OpenAI's clients send."""

    def draw(seed: int, **fields: float) -> str:
        body = {"prompt": PROMPTS[0], "max_tokens": _TOKENS, "seed": seed, **fields}
        return str(expect(model.api.post(_COMPLETIONS_PATH, body)).json()["choices"][0]["text"])

    for limits in ({}, {"top_p": 1.0}, {"top_p": 0.9, "top_k": 50}):
        cold = [draw(seed, temperature=0, **limits) for seed in (1, 2)]
        if cold[0] != cold[1]:
            raise Failed(
                f"temperature 0 with {limits or 'no limit'} is not greedy: seed 1 gave "
                f"{cold[0]!r}, seed 2 {cold[1]!r}"
            )
    hot = {draw(seed, temperature=1, top_p=1.0) for seed in range(1, 5)}
    if len(hot) == 1:
        raise Failed(f"temperature 1 draws nothing: 4 seeds gave {hot.pop()!r}")
    return Passed(f"2 seeds at 0, equal texts with any limits; 4 seeds at 1, {len(hot)} texts")


_TOKENS = 12
_CHAT_PATH, _COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
_RESPONSES_PATH, _MESSAGES_PATH = "/v1/responses", "/v1/messages"
_MESSAGES = [{"role": "user", "content": "Name a colour."}]
_NO_TEMPLATE = "chat template"

Body = dict[str, Any]
Text = Callable[[HttpReply], str]


def predict(model: ServedModel) -> Passed:
    """`/v1/models/model:predict`."""
    body = {"prompt": PROMPTS[0], "max_tokens": _TOKENS, "top_k": 1}
    return _compare(
        model.api,
        PREDICT,
        {**body, "stream": False},
        lambda reply: reply.json()["text"],
        body,
        lambda reply: "".join(event.get("text", "") for event in reply.events()),
        EVENTS,
    )


def completions(model: ServedModel) -> Passed:
    """`/v1/completions`."""
    body = {"prompt": PROMPTS[0], "max_tokens": _TOKENS, "temperature": 0}
    return _compare(
        model.api,
        "/v1/completions",
        body,
        lambda reply: reply.json()["choices"][0]["text"],
        {**body, "stream": True},
        lambda reply: "".join(event["choices"][0]["text"] for event in reply.events()),
    )


def invocations(model: ServedModel) -> Passed:
    """`/invocations` with LMI's body."""
    body = {"inputs": PROMPTS[0], "parameters": {"max_new_tokens": _TOKENS, "do_sample": False}}
    return _compare(
        model.api,
        INVOCATIONS,
        body,
        lambda reply: reply.json()["generated_text"],
        {**body, "stream": True},
        lambda reply: "".join(line["token"]["text"] for line in reply.lines()),
    )


def chat_completions(model: ServedModel) -> Passed:
    """`/v1/chat/completions`."""
    body = {"messages": _MESSAGES, "max_tokens": _TOKENS, "temperature": 0}
    return _compare(
        model.api,
        "/v1/chat/completions",
        body,
        lambda reply: _content(reply.json()["choices"][0]["message"]),
        {**body, "stream": True},
        lambda reply: "".join(
            _content(event["choices"][0]["delta"]) for event in reply.events() if event["choices"]
        ),
    )


def responses(model: ServedModel) -> Passed:
    """`/v1/responses`."""
    body = {"input": _MESSAGES, "max_output_tokens": _TOKENS, "temperature": 0, "store": False}
    return _compare(
        model.api,
        "/v1/responses",
        body,
        lambda reply: "".join(
            part.get("text", "")
            for item in reply.json()["output"]
            for part in item.get("content") or ()
            if part["type"] == "output_text"
        ),
        {**body, "stream": True},
        lambda reply: "".join(
            event["delta"]
            for event in reply.events()
            if event["type"] == "response.output_text.delta"
        ),
    )


def messages(model: ServedModel) -> Passed:
    """`/v1/messages`."""
    body = {"model": "any", "messages": _MESSAGES, "max_tokens": _TOKENS, "temperature": 0}
    return _compare(
        model.api,
        "/v1/messages",
        body,
        lambda reply: "".join(block.get("text", "") for block in reply.json()["content"]),
        {**body, "stream": True},
        lambda reply: "".join(
            event["delta"].get("text", "")
            for event in reply.events()
            if event["type"] == "content_block_delta"
        ),
    )


def triton_grpc(model: ServedModel) -> Passed:
    """Triton's gRPC endpoint, with token ids."""
    ids = model.direct.generate(model.prompt_ids, _TOKENS).ids
    text = model.decode(ids)
    expected = model.greedy(max_tokens=_TOKENS, ignore_eos=True).text
    if text != expected:
        raise Failed(f"the ids {ids} decode to {text!r}, predict returned {expected!r}")
    return Passed(f"{len(ids)} tokens, the text of predict")


def triton_http(model: ServedModel) -> Passed:
    """Triton's HTTP endpoint, with token ids."""
    if model.http_port is None:
        raise Skipped("the endpoint is closed (serving.triton_http_port)")
    body = {
        "input_ids": model.prompt_ids,
        "input_lengths": len(model.prompt_ids),
        "request_output_len": _TOKENS,
        "runtime_top_k": 1,
        "streaming": True,
    }
    api = Api(model.http_port)
    events = expect(api.post(f"/v2/models/{MODEL_NAME}/generate_stream", body)).events()
    ids: list[int] = []
    for event in events:
        if "error" in event:
            raise Failed(f"the stream has the error {event['error']!r}")
        new = event["output_ids"]
        ids += new if isinstance(new, list) else [new]
    direct = model.direct.generate(model.prompt_ids, _TOKENS).ids
    if ids != direct:
        raise Failed(f"it generated {ids}, by gRPC the engine generated {direct}")
    return Passed(f"{len(ids)} tokens, those of gRPC")


def _compare(
    api: Api,
    path: str,
    body: Body,
    text: Text,
    streamed_body: Body,
    streamed_text: Text,
    headers: Mapping[str, str] | None = None,
) -> Passed:
    reply = api.post(path, body)
    if reply.status == 400 and _NO_TEMPLATE in reply.text:
        raise Skipped("the tokenizer has no chat template")
    streamed = expect(api.post(path, streamed_body, headers))
    try:
        whole, joined = text(expect(reply)), streamed_text(streamed)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Failed(
            f"{path} does not have the API's shape ({type(error).__name__}: {error}): "
            f"{streamed.text[-300:]}"
        ) from error
    if whole != joined:
        raise Failed(f"{path} returned {whole!r} at once and streamed {joined!r}")
    if not whole:
        raise Failed(f"{path} returned an empty text")
    return Passed(f"whole and streamed: the same {len(whole)} characters")


def _content(message: Body) -> str:
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


_ROUNDING = 1e-3
_LITERAL = "naïve 漢字 😀"
"""Characters of one to four bytes, which most tokenizers split."""

_SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


def log_probabilities(model: ServedModel) -> Passed:
    """Compare tokens and log probabilities with the answer."""
    body = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "logprobs": 0}
    answer = expect(model.api.post(_COMPLETIONS_PATH, body)).json()
    choice, count = answer["choices"][0], answer["usage"]["completion_tokens"]
    found = choice["logprobs"]
    values = found["token_logprobs"]
    if len(values) != count or len(found["tokens"]) != count:
        raise Failed(
            f"{len(values)} log probabilities of {len(found['tokens'])} tokens came with an "
            f"answer of {count} tokens"
        )
    if wrong := [v for v in values if v is None or not math.isfinite(v) or v > _ROUNDING]:
        raise Failed(f"log probabilities must be at most 0; found {wrong}")
    if (joined := "".join(found["tokens"])) != choice["text"]:
        raise Failed(f"the tokens join to {joined!r}, the text is {choice['text']!r}")
    mean = sum(values) / max(1, len(values))
    # A greedy answer's values are 0 if they are relative to the tokens sampled from
    # (docs/engines.md).
    note = "" if any(values) else "; are they relative to the tokens sampled from?"
    told = f"one for each of {count} tokens, {mean:.2f} on average{note}"
    return Passed(told, {"mean": round(mean, 3)})


def guided_decoding(model: ServedModel) -> Passed:
    """Constrain answers by a regular expression and by a schema."""
    chosen, reason = _guided(model, {"type": "regex", "regex": "(yes|no)"})
    if chosen not in ("yes", "no"):
        raise Failed(f"the regular expression (yes|no) gave {chosen!r} ({reason})")
    literal, reason = _guided(model, {"type": "regex", "regex": _LITERAL})
    if literal != _LITERAL:
        raise Failed(f"the regular expression {_LITERAL} gave {literal!r} ({reason})")
    schema = {"type": "json_schema", "json_schema": {"name": "colour", "schema": _SCHEMA}}
    text, reason = _guided(model, schema)
    try:
        value = json.loads(text)
        if reason == "stop" and value.get("colour") not in ("red", "green"):
            raise Failed(f"a schema gave {text!r}, which does not match it")
    except ValueError:
        if reason == "stop":
            raise Failed(f"a schema gave {text!r}, which is not JSON") from None
    return Passed(f"{chosen!r} by a regular expression, {text!r} by a schema")


_GUIDES_OFF = re.compile(r"guided decoding .*?(?=\. Leave it out)")
"""Part of the refusal of `inference/preprocessing.py`."""


def _guided(model: ServedModel, guide: Mapping[str, object]) -> tuple[str, str]:
    """Return the text of a guided answer and its finish reason."""
    body = {"prompt": PROMPTS[0], "max_tokens": 48, "temperature": 0, "response_format": guide}
    reply = model.api.post(_COMPLETIONS_PATH, body)
    if reply.status == 400 and (found := _GUIDES_OFF.search(reply.text)):
        raise Skipped(found[0])
    choice = expect(reply).json()["choices"][0]
    return choice["text"], choice["finish_reason"]


_PROMPT = {"prompt": PROMPTS[0]}
_USER = [{"role": "user", "content": "Hi"}]
_LARGEST_BYTES = 32 << 20

BAD_BODIES: tuple[tuple[str, Any, str], ...] = (
    (PREDICT, b'{"prompt": ', "JSON"),
    (PREDICT, b"[1, 2]", "object"),
    (PREDICT, {}, "prompt"),
    (PREDICT, {**_PROMPT, "max_tokens": -1}, "max_tokens"),
    (PREDICT, {**_PROMPT, "max_token": 5}, "max_token"),
    (PREDICT, {**_PROMPT, "temperature": "hot"}, "temperature"),
    (PREDICT, {**_PROMPT, "top_p": 3}, "top_p"),
    (PREDICT, {**_PROMPT, "stop_words": 7}, "stop_words"),
    (PREDICT, {**_PROMPT, "seed": -1}, "seed"),
    (PREDICT, {**_PROMPT, "min_tokens": 9, "max_tokens": 4}, "min_tokens"),
    (_COMPLETIONS_PATH, {**_PROMPT, "n": 0}, "n"),
    (_COMPLETIONS_PATH, {"prompt": {"a": 1}}, "prompt"),
    (_CHAT_PATH, {}, "messages"),
    (_CHAT_PATH, {"messages": "Hi"}, "messages"),
    (_CHAT_PATH, {"messages": [{"content": "Hi"}]}, "role"),
    (_CHAT_PATH, {"messages": _USER, "max_tokens": 0}, "max_tokens"),
    (_CHAT_PATH, {"messages": _USER, "response_format": {"type": "poem"}}, "response_format"),
    (_RESPONSES_PATH, {}, "input"),
    (_RESPONSES_PATH, {"input": "Hi", "max_output_tokens": 0}, "max_output_tokens"),
    (_MESSAGES_PATH, {"model": "any", "messages": _USER}, "max_tokens"),
    (_MESSAGES_PATH, {"model": "any", "messages": [], "max_tokens": 4}, "messages"),
    (INVOCATIONS, {"inputs": "Hi", "parameters": {"max_new_tokens": 0}}, "max_new_tokens"),
    (INVOCATIONS, {"inputs": "Hi", "parameters": {"topk": 1}}, "topk"),
)
"""Route, body, and a word that the message must contain."""


def bad_bodies(model: ServedModel) -> Passed:
    """Send all of them, plus one that is too long and one that is too large."""
    cases = [*BAD_BODIES, (PREDICT, _too_long(model), "context")]
    for path, body, word in cases:
        reply = model.api.post(path, body)
        if not 400 <= reply.status < 500 or word not in reply.complaint:
            shown = str(body)[:80]
            raise Failed(
                f"{path} responded to {shown} with {reply.complaint}; expected 4xx and {word!r}"
            )
    refused = len(cases)
    limit = model.settings.serving.max_body_bytes
    if limit < _LARGEST_BYTES:
        reply = model.api.post(PREDICT, b" " * (limit + 1))
        if reply.status != 413:
            raise Failed(f"a body of {limit + 1} bytes got {reply.complaint}; expected HTTP 413")
        refused += 1
    model.greedy(max_tokens=2)
    return Passed(f"{refused} bodies refused by field, the next request answered")


def _too_long(model: ServedModel) -> dict[str, Any]:
    text = " ".join([PROMPTS[0]] * (model.context_tokens // len(model.prompt_ids) + 2))
    return {"prompt": text, "max_tokens": 4}
