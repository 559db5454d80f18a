"""OpenAI's client against the real server, engine and LLM."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.support.openai_types import CompletionChunk, check
from tests.support.truss_process import Served
from tests.support.waiting import settles

HELLO = [{"role": "user", "content": "Say hello."}]
CHAT: dict[str, Any] = {"model": "smollm2", "messages": HELLO, "temperature": 0}
PROMPT = "The capital of France is"
TEXT: dict[str, Any] = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
ENDLESS: dict[str, Any] = {
    **{"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 4000},
    "extra_body": {"ignore_eos": True},
}
STOPS_WITHIN_S = 15


def cpu_lacks(*row: Any) -> Any:
    """Mark a row of something that only the CPU engine refuses."""
    return pytest.param(*row, marks=pytest.mark.engines("cpu"))


@pytest.fixture(scope="module")
def base_url(server: Served) -> str:
    return f"http://127.0.0.1:{server.port}/v1"


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def chunks(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream, which must end with `[DONE]`."""
    raw = httpx.post(url, json={**body, "stream": True}, timeout=60)
    assert raw.headers["content-type"].startswith("text/event-stream")
    events = raw.text.removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def test_a_chat_whole_and_streamed(client: openai.OpenAI, base_url: str) -> None:
    raw = client.chat.completions.with_raw_response.create(**CHAT)
    body = json.loads(raw.content)
    check(ChatCompletion, body)
    assert body["id"] == f"chatcmpl-{raw.headers['x-request-id']}"
    assert body["model"] == "smollm2"
    assert abs(body["created"] - time.time()) < 60
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert "ello" in choice["message"]["content"]
    usage = body["usage"]
    assert usage["prompt_tokens"] > 20
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    options = {"stream_options": {"include_usage": True}}
    events = chunks(f"{base_url}/chat/completions", {**CHAT, **options})
    for event in events:
        check(ChatCompletionChunk, event)
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["choices"] == []
    streamed = events[-1]["usage"]
    details = [each.pop("prompt_tokens_details")["cached_tokens"] for each in (usage, streamed)]
    assert all(0 <= cached < usage["prompt_tokens"] for cached in details)
    assert streamed == usage

    stream = client.chat.completions.create(**CHAT, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == choice["message"]["content"]


def test_cached_tokens_of_two_turns(server: Served, client: openai.OpenAI) -> None:
    """The first prompt is two blocks long, and the second one goes on otherwise than its answer."""
    first = [*range(1000, 1064)]
    found, counted = [], []
    for prompt in (first, [*first, 300, 301, 302]):
        usage = client.completions.create(model="any", prompt=prompt, max_tokens=4).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        found.append(usage.prompt_tokens_details.cached_tokens)
        counted.append(server.metric("cached_prompt_tokens_total"))
    assert found == [0, 64]
    assert counted[1] - counted[0] == 64


def test_a_completion_whole_and_streamed(client: openai.OpenAI, base_url: str) -> None:
    body = client.completions.with_raw_response.create(**TEXT)
    check(Completion, json.loads(body.content))
    whole = body.parse()
    assert "Paris" in whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 16)
    events = chunks(f"{base_url}/completions", TEXT)
    for event in events:
        check(CompletionChunk, event)
    assert len(events) > 1
    assert "".join(event["choices"][0]["text"] for event in events) == whole.choices[0].text


def test_prompts_of_every_form(client: openai.OpenAI, server: Served) -> None:
    other = "Water boils at"
    texts = [client.completions.create(**{**TEXT, "prompt": one}) for one in (PROMPT, other)]
    both = client.completions.create(**{**TEXT, "prompt": [PROMPT, other]})
    assert [choice.text for choice in both.choices] == [one.choices[0].text for one in texts]
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.usage is not None
    assert both.usage.completion_tokens == 32

    ids = [token["id"] for token in prefill(server, PROMPT)]
    of_ids = client.completions.create(**{**TEXT, "prompt": [ids, ids[:2]]})
    assert of_ids.choices[0].text == texts[0].choices[0].text
    echoed = client.completions.create(**{**TEXT, "prompt": ids}, echo=True)
    assert echoed.choices[0].text == PROMPT + texts[0].choices[0].text


def prefill(server: Served, prompt: str) -> list[dict[str, Any]]:
    parameters = {"details": True, "decoder_input_details": True, "max_new_tokens": 1}
    body = server.post({"inputs": prompt, "parameters": parameters}).json()
    tokens: list[dict[str, Any]] = body["details"]["prefill"]
    return tokens


def test_a_stop_text_ends_a_choice_just_before_it(client: openai.OpenAI) -> None:
    text = client.completions.create(**TEXT).choices[0].text
    stop = text[8:12]
    for words in (stop, ["never seen", stop, *map(str, range(20))]):
        choice = client.completions.create(**TEXT, stop=words).choices[0]
        assert choice.text == text[: text.find(stop)]
        assert choice.finish_reason == "stop"
    shown = {"include_stop_str_in_output": True}
    choice = client.completions.create(**TEXT, stop=stop, extra_body=shown).choices[0]
    assert choice.text == text[: text.find(stop) + len(stop)]


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(client: openai.OpenAI, stream: bool) -> None:
    asked = {**CHAT, "temperature": 1.5, "n": 3, "max_tokens": 12, "seed": 7}
    texts = ["", "", ""]
    if stream:
        options = {"include_usage": True}
        ended = 0
        for chunk in client.chat.completions.create(**asked, stream=True, stream_options=options):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ended += choice.finish_reason is not None
            usage = chunk.usage
        assert ended == 3
    else:
        whole = client.chat.completions.create(**asked)
        texts = [str(choice.message.content) for choice in whole.choices]
        usage = whole.usage
    assert len(set(texts)) == 3
    assert usage is not None
    one = client.chat.completions.create(**CHAT, max_tokens=1).usage
    assert one is not None
    assert usage.prompt_tokens == one.prompt_tokens
    assert 12 < usage.completion_tokens <= 36


def test_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, max_tokens=12, logprobs=True)
    (choice,) = whole.choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    assert "".join(token.token for token in tokens) == choice.message.content
    assert whole.usage is not None
    assert len(tokens) == whole.usage.completion_tokens
    assert all(token.logprob <= 0 for token in tokens)
    assert bytes(byte for token in tokens for byte in token.bytes or ()).decode() == (
        choice.message.content
    )
    streamed = [
        token
        for chunk in client.chat.completions.create(
            **CHAT, max_tokens=12, logprobs=True, stream=True
        )
        for token in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ()
    ]
    assert [token.token for token in streamed] == [token.token for token in tokens]
    assert [token.logprob for token in streamed] == pytest.approx(
        [token.logprob for token in tokens], abs=1e-3
    )


def test_log_probabilities_of_a_completion(client: openai.OpenAI) -> None:
    choice = client.completions.create(**TEXT, logprobs=0).choices[0]
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.text_offset is not None
    assert "".join(told.tokens) == choice.text
    assert [choice.text[at:].startswith(token) for at, token in zip(
        told.text_offset, told.tokens, strict=True
    )] == [True] * 16  # fmt: skip


def test_the_one_alternative_of_a_greedy_answer(client: openai.OpenAI) -> None:
    (choice,) = client.completions.create(**TEXT, logprobs=1).choices
    assert choice.logprobs is not None
    assert [list(top) for top in choice.logprobs.top_logprobs or ()] == [
        [token] for token in choice.logprobs.tokens or ()
    ]


@pytest.mark.engines("cpu", "1.3.0", own=False)  # the C++ sampler of 1.2 reports none
def test_the_likeliest_tokens_of_each_place(client: openai.OpenAI) -> None:
    asked = {**CHAT, "max_tokens": 12, "logprobs": True, "top_logprobs": 3}
    answer = client.chat.completions.create(**asked, n=2)
    for choice in answer.choices:
        assert choice.logprobs is not None
        tokens = choice.logprobs.content
        assert tokens
        for token in tokens:
            assert len(token.top_logprobs) == 3
            likeliest = token.top_logprobs[0]
            assert likeliest.logprob >= token.logprob >= token.top_logprobs[2].logprob
            assert token.logprob in [other.logprob for other in token.top_logprobs]
    streamed = [
        token
        for chunk in client.chat.completions.create(**asked, stream=True)
        for token in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ()
    ]
    assert [token.token for token in streamed] == [token.token for token in tokens]
    assert [other.token for token in streamed for other in token.top_logprobs] == [
        other.token for token in tokens for other in token.top_logprobs
    ]


@pytest.mark.engines("cpu")
def test_the_tokens_of_a_prompt(client: openai.OpenAI, base_url: str) -> None:
    sampled = client.completions.create(**{**TEXT, "temperature": 1}, logprobs=5, seed=1).choices[0]
    ids = httpx.post(f"{base_url[:-3]}/tokenize", json={"prompt": PROMPT}, timeout=60).json()[
        "tokens"
    ]
    asked = {**TEXT, "echo": True, "logprobs": 5}
    of_ids = client.completions.create(**{**asked, "prompt": ids, "max_tokens": 1}).choices[0]
    of_text, nothing_more = (
        client.completions.create(
            **{**asked, "prompt": PROMPT + sampled.text, "max_tokens": limit}
        ).choices[0]
        for limit in (1, 0)
    )
    for choice in (of_ids, of_text, nothing_more):
        told = choice.logprobs
        assert told is not None
        assert told.tokens is not None
        assert told.token_logprobs is not None
        assert told.top_logprobs is not None
        assert told.text_offset is not None
        assert "".join(told.tokens) == choice.text
        assert told.text_offset[:2] == [0, len(told.tokens[0])]
        assert told.token_logprobs[0] is told.top_logprobs[0] is None
        # Tokens with the same text are one key: parts of a character have none.
        assert all(
            max(top.values()) >= value and 0 < len(top) <= 6
            for value, top in zip(told.token_logprobs[1:], told.top_logprobs[1:], strict=True)
        )
    assert len(of_ids.logprobs.tokens) == len(ids) + 1
    assert of_text.logprobs.tokens[: len(ids)] == of_ids.logprobs.tokens[: len(ids)]
    assert nothing_more.text == PROMPT + sampled.text
    assert nothing_more.logprobs.token_logprobs == of_text.logprobs.token_logprobs[:-1]
    if of_text.logprobs.tokens[len(ids) : -1] == sampled.logprobs.tokens:  # encoded alike
        assert of_text.logprobs.token_logprobs[len(ids) : -1] == pytest.approx(
            sampled.logprobs.token_logprobs, abs=1e-3
        )


def test_what_clients_of_vllm_send(client: openai.OpenAI, base_url: str, server: Served) -> None:
    nothing = {"top_k": -1, "min_p": 0, "guided_json": None, "logit_bias": {}}
    text = client.completions.create(**TEXT, stop="", extra_body=nothing).choices[0].text
    assert text == client.completions.create(**TEXT).choices[0].text

    options = {"include_usage": True, "continuous_usage_stats": True}
    events = chunks(f"{base_url}/chat/completions", {**CHAT, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1]  # the role alone

    ids = [token["id"] for token in prefill(server, text)]
    stop = {"stop_token_ids": [ids[4], 0]}
    (choice,) = client.completions.create(**TEXT, extra_body=stop).choices
    assert choice.finish_reason == "stop"
    assert len(choice.text) < len(text)
    assert text.startswith(choice.text)

    echoed = client.completions.create(**{**TEXT, "max_tokens": 0}, echo=True)
    assert (echoed.choices[0].text, echoed.choices[0].finish_reason) == (PROMPT, "length")
    assert echoed.usage is not None
    assert (echoed.usage.prompt_tokens, echoed.usage.completion_tokens) == (5, 0)


def test_continuing_the_last_message(client: openai.OpenAI) -> None:
    asked = {"role": "user", "content": "What is the capital of France?"}
    begun = {"role": "assistant", "content": "The capital of France is"}
    options = {"continue_final_message": True}
    for last, extra in ((begun, options), ({**begun, "prefix": True}, {})):
        whole = client.chat.completions.create(
            **{**CHAT, "messages": [asked, last]}, max_tokens=4, extra_body=extra
        )
        assert str(whole.choices[0].message.content).startswith(" Paris")


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_follows_a_schema(client: openai.OpenAI, stream: bool) -> None:
    asked = {
        **CHAT,
        "messages": [{"role": "user", "content": "Describe a person as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
        "max_tokens": 200,
    }
    if stream:
        events = client.chat.completions.create(**asked, stream=True)
        text = "".join(event.choices[0].delta.content or "" for event in events)
    else:
        text = str(client.chat.completions.create(**asked).choices[0].message.content)
    person = json.loads(text)
    assert isinstance(person["name"], str)
    assert isinstance(person["age"], int)


def test_other_guides(client: openai.OpenAI) -> None:
    def answer(guide: dict[str, str]) -> str:
        whole = client.chat.completions.create(**CHAT, max_tokens=60, response_format=guide)
        return str(whole.choices[0].message.content)

    assert answer({"type": "regex", "regex": "(yes|no)"}) in ("yes", "no")
    assert answer({"type": "grammar", "grammar": 'root ::= "left" | "right"'}) in ("left", "right")
    assert answer({"type": "json_object"}).startswith("{")
    odd = ['say "\\"', "é|🤖\n"]
    chosen = client.chat.completions.create(**CHAT, extra_body={"guided_choice": odd})
    assert chosen.choices[0].message.content in odd
    with pytest.raises(
        openai.BadRequestError, match="response_format cannot be followed"
    ) as raised:
        answer({"type": "regex", "regex": "(yes"})
    assert raised.value.param == "response_format"


@pytest.mark.parametrize(
    ("fields", "code", "param", "said"),
    [
        ({"max_tokens": 9000}, "context_length_exceeded", "max_tokens", "9000"),
        (
            {"max_completion_tokens": 9000},
            "context_length_exceeded",
            "max_completion_tokens",
            "8192",
        ),
        cpu_lacks({"logit_bias": {"5": 1}}, "invalid_request", "logit_bias", "not supported"),
        cpu_lacks(
            {"extra_body": {"bad_words": ["x"]}}, "invalid_request", "bad_words", "not supported"
        ),
        ({"extra_body": {"lora_task_id": 1}}, "invalid_request", "lora_task_id", "no adapters"),
        ({"extra_body": {"max_tokns": 1}}, "invalid_request", "max_tokns", "mean max_tokens?"),
        ({"n": 0}, "invalid_request", "n", "at least 1"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_raise_the_clients_exception(
    client: openai.OpenAI, stream: bool, fields: dict[str, Any], code: str, param: str, said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as raised:
        client.chat.completions.create(**CHAT, **fields, stream=stream)
    error = raised.value
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")
    assert error.request_id


def test_a_completion_is_refused_by_its_own_names(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the id 999999") as raised:
        client.completions.create(**{**TEXT, "prompt": [1, 999999]})
    assert raised.value.param == "prompt"


def test_invalid_json_is_refused_in_openais_shape(base_url: str) -> None:
    answer = httpx.post(f"{base_url}/chat/completions", content=b"{", timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_leaving_a_stream_stops_all_its_choices(client: openai.OpenAI, server: Served) -> None:
    before = len(server.cancelled())
    stream = client.completions.create(**ENDLESS, n=3, stream=True)
    seen: set[int] = set()
    while len(seen) < 3:
        seen |= {choice.index for choice in next(stream).choices}
    stream.close()
    assert settles(lambda: len(server.cancelled()) == before + 3, STOPS_WITHIN_S)
    assert max(server.cancelled()[-3:]) < 4000


def test_a_timeout_of_the_client_stops_the_engine(base_url: str, server: Served) -> None:
    """Begin to count the client's half second once the engine has both answers."""

    def wait_for_engine(event: str, _: object) -> None:
        if event == "http11.receive_response_headers.started":
            assert settles(lambda: server.running() == 2)

    def trace(request: httpx.Request) -> None:
        request.extensions["trace"] = wait_for_engine

    before = len(server.cancelled())
    with (
        httpx.Client(event_hooks={"request": [trace]}) as http,
        openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http) as client,
        pytest.raises(openai.APITimeoutError),
    ):
        client.completions.create(**ENDLESS, n=2, timeout=httpx.Timeout(60, read=0.5))
    assert settles(lambda: len(server.cancelled()) == before + 2, STOPS_WITHIN_S)


async def test_asynchronous_clients(base_url: str, server: Served) -> None:
    before = len(server.cancelled())
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=60) as client:

        async def text(stream: bool) -> str:
            if not stream:
                return (await client.completions.create(**TEXT)).choices[0].text
            events = await client.completions.create(**TEXT, stream=True)
            return "".join([event.choices[0].text async for event in events])

        assert len(set(await asyncio.gather(*map(text, [False, True] * 4)))) == 1

        begun = asyncio.Event()

        async def read() -> None:
            async for _ in await client.completions.create(**ENDLESS, stream=True):
                begun.set()

        reader = asyncio.create_task(read())
        await begun.wait()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert await asyncio.to_thread(
            settles, lambda: len(server.cancelled()) == before + 1, STOPS_WITHIN_S
        )
