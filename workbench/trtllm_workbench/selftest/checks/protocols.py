"""Each API: a whole answer and a stream of the same text, in the API's shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtllm_truss.releases.contract import MODEL_NAME
from trtllm_workbench.selftest.bench.bench import INVOCATIONS, PROMPTS, Bench, expect
from trtllm_workbench.selftest.bench.calls import EVENTS, PREDICT, Api, Reply
from trtllm_workbench.selftest.bench.results import CannotRun, FellShort, Held

_TOKENS = 12
_MESSAGES = [{"role": "user", "content": "Name a colour."}]
_NO_TEMPLATE = "chat template"

Body = dict[str, Any]
Text = Callable[[Reply], str]


def predict(bench: Bench) -> Held:
    """`/v1/models/model:predict`."""
    body = {"prompt": PROMPTS[0], "max_tokens": _TOKENS, "top_k": 1}
    return _compare(
        bench.api,
        PREDICT,
        {**body, "stream": False},
        lambda reply: reply.json()["text"],
        body,
        lambda reply: "".join(event.get("text", "") for event in reply.events()),
        EVENTS,
    )


def completions(bench: Bench) -> Held:
    """`/v1/completions`."""
    body = {"prompt": PROMPTS[0], "max_tokens": _TOKENS, "temperature": 0}
    return _compare(
        bench.api,
        "/v1/completions",
        body,
        lambda reply: reply.json()["choices"][0]["text"],
        {**body, "stream": True},
        lambda reply: "".join(event["choices"][0]["text"] for event in reply.events()),
    )


def invocations(bench: Bench) -> Held:
    """`/invocations` with LMI's body."""
    body = {"inputs": PROMPTS[0], "parameters": {"max_new_tokens": _TOKENS, "do_sample": False}}
    return _compare(
        bench.api,
        INVOCATIONS,
        body,
        lambda reply: reply.json()["generated_text"],
        {**body, "stream": True},
        lambda reply: "".join(line["token"]["text"] for line in reply.lines()),
    )


def chat_completions(bench: Bench) -> Held:
    """`/v1/chat/completions`."""
    body = {"messages": _MESSAGES, "max_tokens": _TOKENS, "temperature": 0}
    return _compare(
        bench.api,
        "/v1/chat/completions",
        body,
        lambda reply: _content(reply.json()["choices"][0]["message"]),
        {**body, "stream": True},
        lambda reply: "".join(
            _content(event["choices"][0]["delta"]) for event in reply.events() if event["choices"]
        ),
    )


def responses(bench: Bench) -> Held:
    """`/v1/responses`."""
    body = {"input": _MESSAGES, "max_output_tokens": _TOKENS, "temperature": 0, "store": False}
    return _compare(
        bench.api,
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


def messages(bench: Bench) -> Held:
    """`/v1/messages`."""
    body = {"model": "any", "messages": _MESSAGES, "max_tokens": _TOKENS, "temperature": 0}
    return _compare(
        bench.api,
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


def triton_grpc(bench: Bench) -> Held:
    """Triton's gRPC endpoint, with token ids."""
    ids = bench.direct.generate(bench.prompt_ids, _TOKENS).ids
    text = bench.decode(ids)
    expected = bench.greedy(max_tokens=_TOKENS, ignore_eos=True).text
    if text != expected:
        raise FellShort(f"the ids {ids} decode to {text!r}, predict returned {expected!r}")
    return Held(f"{len(ids)} tokens, the text of predict")


def triton_http(bench: Bench) -> Held:
    """Triton's HTTP endpoint, with token ids."""
    if bench.http_port is None:
        raise CannotRun("the endpoint is closed (serving.triton_http_port)")
    body = {
        "input_ids": bench.prompt_ids,
        "input_lengths": len(bench.prompt_ids),
        "request_output_len": _TOKENS,
        "runtime_top_k": 1,
        "streaming": True,
    }
    api = Api(bench.http_port)
    events = expect(api.post(f"/v2/models/{MODEL_NAME}/generate_stream", body)).events()
    ids: list[int] = []
    for event in events:
        if "error" in event:
            raise FellShort(f"the stream has the error {event['error']!r}")
        new = event["output_ids"]
        ids += new if isinstance(new, list) else [new]
    direct = bench.direct.generate(bench.prompt_ids, _TOKENS).ids
    if ids != direct:
        raise FellShort(f"it generated {ids}, by gRPC the engine generated {direct}")
    return Held(f"{len(ids)} tokens, those of gRPC")


def _compare(
    api: Api,
    path: str,
    body: Body,
    text: Text,
    streamed_body: Body,
    streamed_text: Text,
    headers: Mapping[str, str] | None = None,
) -> Held:
    reply = api.post(path, body)
    if reply.status == 400 and _NO_TEMPLATE in reply.text:
        raise CannotRun("the tokenizer has no chat template")
    streamed = expect(api.post(path, streamed_body, headers))
    try:
        whole, joined = text(expect(reply)), streamed_text(streamed)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise FellShort(
            f"{path} does not have the API's shape ({type(error).__name__}: {error}): "
            f"{streamed.text[-300:]}"
        ) from error
    if whole != joined:
        raise FellShort(f"{path} answered {whole!r} at once and streamed {joined!r}")
    if not whole:
        raise FellShort(f"{path} answered with an empty text")
    return Held(f"whole and streamed: the same {len(whole)} characters")


def _content(message: Body) -> str:
    return (message.get("reasoning_content") or "") + (message.get("content") or "")
