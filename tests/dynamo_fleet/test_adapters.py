"""Adapters behind Dynamo's frontend: a stand-in of TensorRT-LLM's library moves each token by one
for the adapter `poet`, by two for `sql`.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.servers.dynamo import MODEL, Fleet
from tests.fakes.tensorrt_llm import (
    COUNTING,
    VERSIONS,
    config_for_checkpoint,
    fake_library,
    write_checkpoint,
)
from tests.support.lora import write_smollm2_adapter
from tests.support.smollm2 import smollm2_file
from tests.support.waiting import settles

PARSER = "hermes"
PROMPT = [40, 41, 42]
TEXTS = {MODEL: "89:", "poet": "9:;", "sql": ":;<"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[Fleet]:
    """Two workers with adapters, and one without, which survives when the tests kill the others."""
    adapters = {}
    for name in ("poet", "sql"):
        adapters[name] = str(folder / name)
        write_smollm2_adapter(folder / name)
    checkpoint = write_checkpoint(folder / "checkpoint", smollm2_file())
    config = config_for_checkpoint(checkpoint, lora_adapters=adapters)
    config = config.rename(folder / "adapters.yaml")
    fleet = Fleet(folder)
    try:
        for file in (config, config, config_for_checkpoint(checkpoint)):
            library = {**fake_library(VERSIONS[-1]), **COUNTING}
            fleet.add_worker(file, "--tool-call-parser", PARSER, **library)
        fleet.wait_for(3)
        assert settles(lambda: listed(fleet) == {*TEXTS})
        yield fleet
    finally:
        fleet.close()


def listed(fleet: Fleet) -> set[str]:
    return {model["id"] for model in fleet.client.get("/v1/models").json()["data"]}


def ask(fleet: Fleet, model: str, prompt: list[int] = PROMPT) -> tuple[int, str]:
    """Return the status, and the text of an answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": 3, "temperature": 0}
    answer = fleet.client.post("/v1/completions", json={**body, "ignore_eos": True})
    return answer.status_code, answer.json()["choices"][0]["text"] if answer.is_success else ""


def test_an_adapter_is_a_model(fleet: Fleet) -> None:
    for model, text in TEXTS.items():
        assert ask(fleet, model) == (200, text)
    assert ask(fleet, "other") == (404, "")


def test_its_requests_go_to_workers_that_have_it(fleet: Fleet) -> None:
    for number in range(12):
        prompt = [*PROMPT, *range(1000 + number, 1100 + number)]
        assert ask(fleet, "sql", prompt) == (200, TEXTS["sql"])
    without = fleet.log_of(fleet.workers[2])
    assert "does not serve" not in without


def test_its_card_has_the_sizes_and_parsers_of_the_base(fleet: Fleet, folder: Path) -> None:
    cards = [json.loads(file.read_text()) for file in (folder / "store/v1/mdc").iterdir()]
    assert len(cards) == 3 + 2 * 2
    described: list[dict[str, Any]] = [card["card_json"]["runtime_config"] for card in cards]
    assert described[0]["tool_call_parser"] == PARSER
    assert described[0]["context_length"]
    assert all(each == described[0] for each in described)


def test_a_killed_worker_hands_its_answer_to_the_same_adapter(fleet: Fleet) -> None:
    """The prompt of the second worker has tokens of the adapter, which it moves again."""
    body = {"model": "sql", "prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True}
    body["temperature"] = 0
    text, reason, call_id, repeated = "", None, "", TEXTS["sql"] * 2
    with fleet.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            assert not line.startswith("event: error"), line
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                (choice,) = event["choices"]
                text += choice["text"]
                reason = choice.get("finish_reason") or reason
                if not call_id and len(text) >= len(repeated):
                    call_id = event["id"].removeprefix("cmpl-")
                    (victim,) = holders(fleet, call_id)
                    victim.send_signal(signal.SIGKILL)
    assert reason == "length"
    assert text.startswith(repeated)
    assert ">" in text, "a token that was moved twice"
    assert "8" not in text, "a token of the base model"
    assert holders(fleet, call_id) == fleet.workers[:2]


def holders(fleet: Fleet, call_id: str) -> list[subprocess.Popen[bytes]]:
    """Return the workers that have received a request."""
    return [worker for worker in fleet.workers if call_id in fleet.log_of(worker)]


def test_no_other_model_answers_for_an_adapter_that_is_gone(fleet: Fleet) -> None:
    for worker in fleet.workers[:2]:
        worker.kill()
        worker.wait()
    for _ in range(4):
        assert ask(fleet, "sql")[0] in {404, 503}
    assert settles(lambda: ask(fleet, MODEL) == (200, TEXTS[MODEL]))
