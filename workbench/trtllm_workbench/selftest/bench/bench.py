"""State and helpers that all checks of one served model share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from trtllm_truss.errors import TrussError
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_workbench.selftest.bench.calls import PREDICT, Api, Reply
from trtllm_workbench.selftest.bench.direct import DirectEngine
from trtllm_workbench.selftest.bench.results import FellShort
from trtllm_workbench.selftest.bench.server import ChildServer

PROMPTS = ("Once upon a time there was a little", "Café, naïve, Ærø, 漢字, 😀👍🏽: once more, café")
"""Shorter than a block of any KV cache, so that no answer depends on an earlier one."""

INVOCATIONS = "/invocations"
_ANSWER_TOKENS = 24
_MARGIN_TOKENS = 64


@dataclass(slots=True)
class Answer:
    """One greedy answer with its token ids, streamed in LMI's format.

    Attributes:
        prompt: the prompt.
        ids: tokens of the answer.
        text: `generated_text`.
        joined: the texts of the tokens, joined.
        cut_short: the limit of tokens ended the answer.
    """

    prompt: str
    ids: list[int]
    text: str
    joined: str
    cut_short: bool


@dataclass
class Bench:
    """One served model.

    Attributes:
        server: the child.
        direct: its engine.
        tokenizer: its tokenizer.
        settings: its settings.
        batch: requests that the engine runs at once, over all instances.
        context_tokens: limit of prompt and answer together.
        cache_tokens: tokens that the KV cache holds.
        http_port: Triton's HTTP port.
        quick: measure less.
        kind: what is served.
        prompt_tokens: of the longest prompt.
        beam_width: the engine's `max_beam_width`.
        honours_seeds: equal seeds give equal answers.
    """

    server: ChildServer
    direct: DirectEngine
    tokenizer: TextTokenizer
    settings: Settings
    batch: int
    context_tokens: int
    cache_tokens: int
    http_port: int | None = None
    quick: bool = False
    kind: Literal["engine", "checkpoint", "cpu"] = "engine"
    prompt_tokens: int = 0
    beam_width: int = 1
    honours_seeds: bool = True

    @property
    def adapters(self) -> int:
        """The number of LoRA adapters; their ids count from 1."""
        return len(self.settings.lora_adapters)

    @property
    def api(self) -> Api:
        return self.server.api

    @cached_property
    def prompt_ids(self) -> list[int]:
        """The first prompt, encoded."""
        return self.tokenizer.encode(PROMPTS[0])

    @property
    def long(self) -> dict[str, Any]:
        """A body of predict whose answer is as long as context and KV cache allow."""
        return {"prompt": PROMPTS[0], "max_tokens": self.longest_answer, "ignore_eos": True}

    @property
    def longest_answer(self) -> int:
        """Tokens that each of a whole batch of answers to the first prompt may have."""
        tokens = min(self.context_tokens, self.cache_tokens // self.batch)
        return max(1, tokens - len(self.prompt_ids) - _MARGIN_TOKENS)

    @cached_property
    def answers(self) -> list[Answer]:
        """A greedy answer to each of the prompts.

        Raises:
            FellShort: an answer is an error or incomplete.
        """
        return [self._ask(prompt) for prompt in PROMPTS]

    def greedy(self, prompt: str = PROMPTS[0], **fields: Any) -> Reply:
        """Ask predict for a greedy answer."""
        return expect(self.api.post(PREDICT, greedy_body(prompt, **fields)))

    def _ask(self, prompt: str) -> Answer:
        parameters = {"max_new_tokens": _ANSWER_TOKENS, "details": True, "do_sample": False}
        body = {"inputs": prompt, "parameters": parameters, "stream": True}
        lines = expect(self.api.post(INVOCATIONS, body)).lines()
        last = lines[-1]
        if message := last["token"].get("error_msg"):
            raise FellShort(f"the stream of {INVOCATIONS} ended with the error: {message}")
        tokens = [line["token"] for line in lines if line["token"]["id"] >= 0]
        return Answer(
            prompt,
            [token["id"] for token in tokens],
            last["generated_text"],
            "".join(token["text"] for token in tokens),
            last["details"]["finish_reason"] == "length",
        )

    def decode(self, ids: list[int]) -> str:
        """Decode all ids at once with the model's tokenizer.

        Raises:
            FellShort: the tokenizer fails on them.
        """
        try:
            return self.tokenizer.decode(ids)
        except TrussError as error:
            raise FellShort(f"the tokenizer does not decode the engine's ids: {error}") from error


def greedy_body(prompt: str, **fields: Any) -> dict[str, Any]:
    """Return predict's body for a greedy answer."""
    return {"prompt": prompt, "max_tokens": _ANSWER_TOKENS, "top_k": 1, **fields}


def expect(reply: Reply, status: int = 200) -> Reply:
    """Return a reply with the status and a complete body.

    Raises:
        FellShort: the status is another one, or the connection was cut.
    """
    if reply.status != status:
        raise FellShort(f"expected HTTP {status}, received {reply.complaint}")
    if reply.is_cut:
        raise FellShort(f"the response was cut off after {len(reply.body)} bytes")
    return reply
