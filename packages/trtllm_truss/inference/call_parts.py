"""Parts shared by the engine requests of one call, and limits on all of them together.

All prompts of a body, up to 256, and all their choices share its fields. Whatever is built from a
field is therefore built once per call: a trie of stop words takes a megabyte and milliseconds, and
a guide of 64 kB is read and hashed several times. A call that only counts tokens skips the parts
that only an engine or a text needs.

Whatever each choice repeats is limited by the product of prompts, choices and size.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import fields
from functools import cached_property
from operator import attrgetter

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.guides.gate import GuideGate
from trtllm_truss.guides.guide import CheckedGuide
from trtllm_truss.inference.tokenization import EncodedPrompt, prompt_field
from trtllm_truss.requests import GenerationRequest, Guide
from trtllm_truss.text.stop_words import NO_STOP_WORDS, StopWords
from trtllm_truss.text.tokenizer import StopWordIds, TextTokenizer

MAX_ECHOED_CHARACTERS = 8 << 20
"""Maximum prompt characters that all choices of a call repeat: the maximum of one body."""

MAX_PROMPT_FIGURES = 1 << 17
"""Maximum prompt tokens in all choices of a call, counting each alternative; a token takes 200
bytes and an alternative 100."""

_PROMPT = frozenset({"prompt", "prompt_ids", "messages"})
_values = attrgetter(*(each.name for each in fields(GenerationRequest) if each.name not in _PROMPT))


class CallParts:
    """Parts of engine requests that do not depend on the prompt.

    Args:
        request: any request of the call, valid for the engine.
        stop_word_ids: the tokenizer's ids of stop words.
        guides: admits guides; None without guided decoding.

    Raises:
        InvalidRequest: an id in `stop_token_ids` is not in the vocabulary.
    """

    def __init__(
        self,
        request: GenerationRequest,
        tokenizer: TextTokenizer,
        stop_word_ids: StopWordIds,
        guides: GuideGate | None,
    ) -> None:
        self._request = request
        self._values = _values(request)
        self._tokenizer = tokenizer
        self._stop_word_ids = stop_word_ids
        self._guides = guides
        self._checked: CheckedGuide | None = None
        self._begun: Future[CheckedGuide] | None = None
        self._require_known_ids()

    def serve(self, request: GenerationRequest) -> bool:
        """Return True if a request differs only in its prompt."""
        return _values(request) == self._values  # one object for the most common values of a call

    @cached_property
    def stop_words(self) -> StopWords:
        words = self._request.stop_words
        return StopWords(words) if words else NO_STOP_WORDS

    @cached_property
    def special_stop_words(self) -> Mapping[int, str]:
        """The text of each stop word that is a special token, by token id."""
        found = ((self._stop_word_ids.special(word), word) for word in self._request.stop_words)
        return {token_id: word for token_id, word in found if token_id is not None}

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Token ids that finish a choice and are not part of it."""
        request = self._request
        eos_ids = () if request.ignore_eos else self._tokenizer.eos_ids
        return tuple(dict.fromkeys((*eos_ids, *self.special_stop_words, *request.stop_token_ids)))

    @cached_property
    def engine_stop_words(self) -> list[list[int]]:
        """Further end ids and hints of stop words, as one-token words.

        The backend accepts one end id only.
        """
        hints = map(self._stop_word_ids.hint, self._request.stop_words)
        ids = dict.fromkeys((*self.end_ids[1:], *hints))
        return [[token_id] for token_id in ids if token_id is not None]

    @cached_property
    def engine_bad_words(self) -> list[list[int]]:
        """Bad words, each as at the start of a text and after a space."""
        spellings = (each for word in self._request.bad_words for each in (word, f" {word}"))
        return [self._tokenizer.encode(each, add_special_tokens=False) for each in spellings]

    def begin_check(self) -> None:
        """Start checking the guide while the prompt is encoded."""
        if self._guide is not None and self._checked is None and self._begun is None:
            assert self._guides is not None, "it has a guide"
            self._begun = self._guides.begin(self._guide)

    def drop_check(self) -> None:
        """Abandon the check unless another caller waits for it."""
        if self._begun is not None:
            self._begun.cancel()

    @cached_property
    def _guide(self) -> Guide | None:
        """The guide to check; None without a guide, or if nothing could finish its choice."""
        request = self._request
        if request.guide is None or self._guides is None or not self._can_end:
            return None
        guide = request.guide
        return self._guides.fix_blanks(guide) if request.fixes_blanks else guide

    @property
    def _can_end(self) -> bool:
        if self.special_stop_words:
            return True
        return bool(self._tokenizer.eos_ids) and not self._request.ignore_eos

    async def checked_guide(self) -> CheckedGuide | None:
        """Wait for the check of the guide; None without a guide, or without a check.

        Raises:
            InvalidRequest: the guide is invalid, or nothing could finish its choice.
            QueueFull: too many guides wait for their check, or the engine holds too many.
            EngineUnavailable: the guide cannot be checked.
        """
        request, guides = self._request, self._guides
        if request.guide is None:
            return None
        if not self._can_end:
            name = request.name("guide")
            raise InvalidRequest(
                f"{name} needs the model's end of sequence to end the answer; do not ignore it.",
                param=name,
            )
        if guides is not None and self._guide is not None and self._checked is None:
            try:
                self._checked = await guides.admit(request, self._guide)
            finally:
                self.drop_check()
        return self._checked

    def _require_known_ids(self) -> None:
        request, size = self._request, self._tokenizer.vocab_size
        if (largest := max(request.stop_token_ids, default=0)) >= size:
            name = request.name("stop_token_ids")
            raise InvalidRequest(
                f"{name} holds the id {largest}; the model's ids end at {size - 1}.", param=name
            )


class RepeatedPrompts:
    """Limits how much of their prompts the choices of one call repeat.

    The first choice is not counted.
    """

    def __init__(self) -> None:
        self._characters = self._figures = 0

    def add(self, request: GenerationRequest, prompt: EncodedPrompt) -> None:
        """Count the choices of one prompt.

        Raises:
            InvalidRequest: the choices together repeat too much.
        """
        is_first = not (self._characters or self._figures)
        self._characters += request.n * len(prompt.text)
        copies = request.n if request.scores_prompt else 1
        self._figures += copies * len(prompt.tokens) * (1 + (request.log_probs or 0))
        if is_first and request.n == 1:
            return
        for count, most, unit in (
            (self._characters, MAX_ECHOED_CHARACTERS, "characters"),
            (self._figures, MAX_PROMPT_FIGURES, "tokens and alternatives"),
        ):
            if count > most:
                name = request.name("n") if request.n > 1 else prompt_field(request)
                raise InvalidRequest(
                    f"the answers would repeat {count} {unit} of their prompts; at most {most} are "
                    "returned at once. Send fewer prompts, or ask for fewer choices.",
                    param=name,
                )
