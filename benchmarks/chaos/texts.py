"""The expected answers: the fake engine repeats the prompt's ids up to an EOS id."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from benchmarks.paths import smollm2_file
from trtllm_truss.text.tokenizer import load_tokenizer

_WORDS = (
    *("river", "glass", "bread", "stars", "bridge", "maps", "rain", "wood", "naïve", "Straße"),
    *("猫", "пять", "🙂", "sixty-four", "3.14", "don't"),
)


class Texts:
    """Random prompts and their expected answers."""

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer(smollm2_file())

    def prompt(self, chance: random.Random) -> str:
        """Return words in a random order, almost always unique."""
        return " ".join(chance.choices(_WORDS, k=chance.randint(3, 20)))

    def completion(self, prompt: str, max_tokens: int) -> str:
        return self._answer(self._tokenizer.encode(prompt), max_tokens)

    def chat(self, messages: Sequence[dict[str, Any]], max_tokens: int) -> str:
        return self._answer(self._tokenizer.apply_chat_template(messages), max_tokens)

    def _answer(self, prompt_ids: Sequence[int], max_tokens: int) -> str:
        ids: list[int] = []
        while len(ids) < max_tokens:
            token_id = prompt_ids[len(ids) % len(prompt_ids)]
            if token_id in self._tokenizer.eos_ids:
                break
            ids.append(token_id)
        return self._tokenizer.decode(ids)
