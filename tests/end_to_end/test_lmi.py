"""LMI's, SageMaker's and TGI's clients against the real server, engine and LLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import httpx
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError
from openai.types import Completion
from openai.types.chat import ChatCompletion
from tests.support.openai_types import check
from tests.support.truss_process import Served

PROMPT = "Deep Learning is"
PARAMETERS = {"max_new_tokens": 8, "details": True}


def invoke(server: Served, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{server.port}/invocations", json=body, timeout=60)


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.text.splitlines()]


def test_text_and_details(server: Served) -> None:
    answer = invoke(server, {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}})
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["generated_text"]
    text = answer.json()["generated_text"]

    whole = invoke(server, {"inputs": PROMPT, "parameters": PARAMETERS}).json()
    assert list(whole) == ["generated_text", "details"]
    assert whole["generated_text"] == text
    details = whole["details"]
    assert list(details) == ["finish_reason", "generated_tokens", "inputs", "tokens"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 8)
    assert details["inputs"] == PROMPT
    assert "".join(token["text"] for token in details["tokens"]) == text
    assert all(list(token) == ["id", "text", "log_prob"] for token in details["tokens"])
    assert all(token["log_prob"] <= 0 for token in details["tokens"])


def test_a_stream_of_lines(server: Served) -> None:
    text = invoke(server, {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}}).json()
    answer = invoke(server, {"inputs": PROMPT, "parameters": PARAMETERS, "stream": True})
    assert answer.headers["content-type"] == "application/jsonlines"
    *middle, last = lines(answer)
    assert all(list(line) == ["token"] for line in middle)
    assert len(middle) == 7
    assert list(last) == ["token", "generated_text", "details"]
    assert last["generated_text"] == text["generated_text"]
    assert last["details"] == {"finish_reason": "length", "generated_tokens": 8, "inputs": PROMPT}
    told = "".join(line["token"]["text"] for line in (*middle, last))
    assert told == text["generated_text"]


def test_events(server: Served) -> None:
    parameters = {"max_new_tokens": 4, "output_formatter": "sse"}
    answer = invoke(server, {"inputs": PROMPT, "parameters": parameters, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = answer.text.removesuffix("\n\n").split("\n\n")
    assert len(frames) == 4
    assert all("token" in json.loads(frame.removeprefix("data: ")) for frame in frames)


def test_a_list_of_inputs_returns_a_list(server: Served) -> None:
    inputs = [PROMPT, "Water boils at"]
    answer = invoke(server, {"inputs": inputs, "parameters": PARAMETERS}).json()
    assert [each["details"]["inputs"] for each in answer] == inputs
    alone = invoke(server, {"inputs": inputs[1], "parameters": PARAMETERS}).json()
    assert answer[1]["generated_text"] == alone["generated_text"]


def test_reasons_to_end(server: Served) -> None:
    text = invoke(server, {"inputs": PROMPT, "parameters": PARAMETERS}).json()["generated_text"]
    stop = text[6:10]
    parameters = {**PARAMETERS, "stop": [stop]}
    answer = invoke(server, {"inputs": PROMPT, "parameters": parameters}).json()
    assert answer["details"]["finish_reason"] == "stop_sequence"
    assert answer["generated_text"] == text[: text.find(stop)]
    parameters = {**parameters, "include_stop_str_in_output": True, "return_full_text": True}
    answer = invoke(server, {"inputs": PROMPT, "parameters": parameters}).json()
    assert answer["generated_text"] == PROMPT + text[: text.find(stop) + len(stop)]
    hello = "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"
    parameters = {"max_new_tokens": 200, "details": True}
    answer = invoke(server, {"inputs": hello, "parameters": parameters}).json()
    assert answer["details"]["finish_reason"] == "eos_token"


def test_the_last_tokens_of_an_input_are_kept(server: Served) -> None:
    parameters = {**PARAMETERS, "truncate": 2, "decoder_input_details": True}
    answer = invoke(server, {"inputs": f"One two {PROMPT}", "parameters": parameters}).json()
    assert [token["text"] for token in answer["details"]["prefill"]] == [" Learning", " is"]


def test_openais_bodies(server: Served) -> None:
    chat = {
        "messages": [{"role": "user", "content": "Say hello."}],
        **{"max_tokens": 8, "logprobs": True, "top_logprobs": 1},  # as LMI's own test sends
    }
    answer = invoke(server, chat)
    check(ChatCompletion, answer.json())
    (choice,) = answer.json()["choices"]
    for token in choice["logprobs"]["content"]:
        assert token["top_logprobs"][0]["token"] == token["token"]
    answer = invoke(server, {**chat, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")
    answer = invoke(server, {"prompt": PROMPT, "temperature": 0, "logprobs": 1})
    check(Completion, answer.json())
    assert answer.json()["usage"]["completion_tokens"] == 16
    answer = invoke(server, {**chat, "max_tokens": 9000})
    assert answer.json()["error"]["message"].startswith("This model's maximum context length is")


def test_errors_have_lmis_shape(server: Served) -> None:
    parameters = {"max_new_tokens": 9000}
    answer = invoke(server, {"inputs": PROMPT, "parameters": parameters})
    assert answer.status_code == 400
    assert list(answer.json()) == ["code", "error"]
    assert answer.json()["code"] == 400
    message = answer.json()["error"]
    assert message.startswith("This model's maximum context length is 8192 tokens. However, ")
    assert "parameters.max_new_tokens is 9000" in message


@pytest.mark.engines("cpu")
def test_bad_sequences_are_refused_by_lmis_name(server: Served) -> None:
    answer = invoke(server, {"inputs": PROMPT, "parameters": {"bad_sequences": "x"}})
    assert answer.json()["error"].startswith("parameters.bad_sequences is not supported")


@pytest.fixture(scope="module")
def tgi(server: Served) -> Iterator[InferenceClient]:
    with InferenceClient(f"http://127.0.0.1:{server.port}/invocations") as client:
        yield client


def test_the_client_of_tgi(tgi: InferenceClient) -> None:
    text = tgi.text_generation(PROMPT, max_new_tokens=8)
    whole = tgi.text_generation(
        PROMPT, max_new_tokens=8, details=True, decoder_input_details=True, seed=5
    )
    assert whole.generated_text == text
    assert whole.details is not None
    assert (whole.details.finish_reason, whole.details.generated_tokens) == ("length", 8)
    assert whole.details.seed == 5
    assert "".join(token.text for token in whole.details.prefill) == PROMPT
    assert "".join(token.text for token in whole.details.tokens) == text
    assert all(token.logprob <= 0 and not token.special for token in whole.details.tokens)

    assert "".join(tgi.text_generation(PROMPT, max_new_tokens=8, stream=True)) == text
    events = list(tgi.text_generation(PROMPT, max_new_tokens=8, stream=True, details=True))
    assert [event.token.id for event in events] == [token.id for token in whole.details.tokens]
    assert events[-1].generated_text == text
    assert events[-1].details is not None
    assert events[-1].details.finish_reason == "length"


def test_the_client_of_tgi_raises_its_own_exceptions(tgi: InferenceClient) -> None:
    with pytest.raises(ValidationError, match=r"parameters\.max_new_tokens is 9000"):
        tgi.text_generation(PROMPT, max_new_tokens=9000)


@pytest.fixture(scope="module")
def sagemaker(server: Served) -> Any:
    """SageMaker's client, with the endpoint path of the platform replaced."""
    client = boto3.client(
        "sagemaker-runtime",
        region_name="us-east-1",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        config=Config(signature_version=UNSIGNED, retries={"total_max_attempts": 1}),
    )

    def to_container(request: Any, **_: Any) -> None:
        request.url = request.url.partition("/endpoints/")[0] + "/invocations"

    client.meta.events.register("before-send.sagemaker-runtime", to_container)
    return client


def test_sagemakers_client(server: Served, sagemaker: Any) -> None:
    assert httpx.get(f"http://127.0.0.1:{server.port}/ping", timeout=60).status_code == 200
    body = {"inputs": PROMPT, "parameters": PARAMETERS}
    asked = {"EndpointName": "any", "ContentType": "application/json"}
    answer = sagemaker.invoke_endpoint(**asked, Body=json.dumps(body))
    whole = json.loads(answer["Body"].read())
    assert whole["details"]["generated_tokens"] == 8
    answer = sagemaker.invoke_endpoint(**asked, Body=json.dumps({**body, "stream": True}))
    *_, last = [json.loads(line) for line in answer["Body"].iter_lines()]
    assert last["generated_text"] == whole["generated_text"]
    hello = [{"role": "user", "content": "Say hello."}]
    chat = {"messages": hello, "model": "any", "max_tokens": 8}
    answer = sagemaker.invoke_endpoint(**asked, Body=json.dumps(chat))
    assert json.loads(answer["Body"].read())["object"] == "chat.completion"
    with pytest.raises(ClientError):
        sagemaker.invoke_endpoint(**asked, Body=json.dumps({"inputs": 5}))
