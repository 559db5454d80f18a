"""Validate requests and convert them to engine requests.

A guide is validated before its request queues for the engine.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_truss.engines.engine import Engine
from trtllm_truss.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from trtllm_truss.guides.guide import (
    CheckedGuide,
    CheckFailed,
    GuideFault,
    KeptGuides,
    TooManyGuides,
)
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.inference.capabilities import Capabilities, validate_capabilities
from trtllm_truss.inference.reasoning import ReasoningPlan
from trtllm_truss.inference.tokenization import (
    EncodedPrompt,
    EncodingQueue,
    encode_prompt,
    prompt_field,
)
from trtllm_truss.releases import CacheReport, holds
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import GenerationRequest, Guide
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.text_stream import NO_STOP_WORDS, StopWords
from trtllm_truss.text.tokenizer import StopWordIds, TextTokenizer
from trtllm_truss.triton.client.failures import RETRY_AFTER_S, unavailable
from trtllm_truss.triton.client.tensors import EngineRequest

if TYPE_CHECKING:
    from trtllm_truss.tracing import CallTrace

logger = logging.getLogger(__name__)


_LLGUIDANCE_OPTIONS = '{"x-guidance": ' + json.dumps(
    {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
)


class GuideGate:
    """Rejects requests with guides that the engine must not compile.

    A waiting request holds no slot and does not count for `hang_timeout_s`.

    Args:
        check: the validator for the engine's vocabulary.
        kept: the guides that the engine keeps until it ends; None if it frees them itself.
        library: the engine's grammar library.
    """

    def __init__(
        self,
        check: GuideValidator,
        kept: KeptGuides | None = None,
        library: str | None = "xgrammar",
    ) -> None:
        self._check = check
        self._kept = kept
        self._library = library

    def fix_blanks(self, guide: Guide) -> Guide:
        """Return the guide of JSON without other blanks than one after each comma and colon.

        LLGuidance reads options in the schema
        (https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md). For XGrammar,
        which TensorRT-LLM and OpenVINO GenAI give no options, the check writes the grammar.
        """
        if guide.language != "json_schema":
            return guide
        if self._library != "llguidance":
            return guide._replace(fixes_blanks=True)
        rest = guide.text.removeprefix("{")
        return guide._replace(text=_LLGUIDANCE_OPTIONS + ("" if rest == "}" else ", ") + rest)

    def engine_is_gone(self) -> None:
        if self._kept is not None:
            self._kept.clear()

    async def admit(self, request: GenerationRequest, guide: Guide) -> CheckedGuide:
        """Wait for the check of a request's guide.

        Raises:
            InvalidRequest: the guide is invalid.
            QueueFull: too many guides wait for their check, or the engine keeps too many.
            EngineUnavailable: the check failed.
        """
        name = request.name("guide")
        if self._kept is None:
            return await self._checked(guide, name)
        if guide not in self._kept and not self._kept.has_room():
            raise _full(name)
        checked = await self._checked(guide, name)
        if guide not in self._kept and not self._kept.has_room(checked.kept_bytes):
            raise _full(name)
        self._kept.add(guide, checked.kept_bytes)
        return checked

    async def _checked(self, guide: Guide, name: str) -> CheckedGuide:
        try:
            return await asyncio.wrap_future(self._check.check(guide))
        except GuideFault as fault:
            raise InvalidRequest(f"{name} cannot be followed: {fault}", param=name) from None
        except TooManyGuides as error:
            raise QueueFull(str(error), param=name, retry_after_s=RETRY_AFTER_S) from None
        except CheckFailed as error:
            raise unavailable(str(error)) from None


def _full(name: str) -> QueueFull:
    return QueueFull(
        f"{name} is a new guide, and the engine has no memory for further ones until it restarts "
        "(serving.guide_memory_bytes); send one that was sent before.",
        param=name,
        retry_after_s=RETRY_AFTER_S,
    )


def kept_guides_for(
    engine: Engine, settings: Settings, tensorrt_llm_version: str | None
) -> KeptGuides | None:
    """Return the budget of an engine that never frees a guide; None if it frees them itself.

    The CPU engine does; LLGuidance keeps none. From 1.1 on XGrammar in TensorRT-LLM drops the
    oldest of more than `XGRAMMAR_CACHE_LIMIT_GB`, by default 1: the row `guides-are-freed` of
    `selftest`'s table of assumptions has the sources.
    """
    if engine.guided_decoding_backend(settings) != "xgrammar":
        return None
    if holds("frees_guides", tensorrt_llm_version or None, unknown=False):
        return None
    return KeptGuides(settings.serving.guide_memory_bytes)


def guide_check_for(
    engine: Engine,
    tokenizer_info: Path | None,
    environment: Mapping[str, str],
    compile_limit_s: float,
) -> GuideValidator | None:
    """Build the validator for an engine without starting it; None without guided decoding.

    Args:
        tokenizer_info: TensorRT-LLM's vocabulary file; None without guided decoding.
        environment: environment of the worker process.
        compile_limit_s: CPU time per guide.
    """
    program = engine.guide_check(tokenizer_info)
    if program is None:
        return None
    if importlib.util.find_spec("xgrammar") is None:
        logger.warning(
            "XGrammar's Python package is not installed: JSON by a schema may have any blanks%s",
            ""
            if tokenizer_info is None
            else ", and only length, depth and repetitions of guides are checked",
        )
    return GuideValidator(program, environment, compile_limit_s)


_SEEDS = 2**64
_draw = random.Random().getrandbits  # noqa: S311 - seeds are no secrets


@dataclass(slots=True)
class PreparedRequest:
    """One answer to a request, ready for the engine.

    Attributes:
        engine_request: the whole answer's request in the engine's terms.
        end_ids: token ids that end the answer and are not part of it.
        special_stop_words: text by token id of the stop words that are special tokens.
        stop_words: stop words of the request, shared by its answers.
        index: number of the answer in its call.
        reasoning: the reasoning that the engine generates apart from the answer; None for none.
    """

    request: GenerationRequest
    prompt: EncodedPrompt
    engine_request: EngineRequest
    end_ids: tuple[int, ...]
    special_stop_words: Mapping[int, str]
    stop_words: StopWords
    index: int = 0
    reasoning: ReasoningPlan | None = None

    @property
    def tokens(self) -> int:
        """KV cache tokens of prompt and maximum answer, over all beams."""
        request = self.engine_request
        return (len(request.input_ids) + request.max_tokens) * request.beam_width

    @property
    def seed(self) -> int:
        seed = self.engine_request.sampling.seed
        assert seed is not None
        return seed

    def special_stop_word(self, end_id: int | None) -> str | None:
        """Return the stop word of an end id, if it is a special token.

        Args:
            end_id: the end id in the output; None for the one that the engine omits.
        """
        end = self.engine_request.end_id if end_id is None else end_id
        return None if end is None else self.special_stop_words.get(end)

    def cut_at_end(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], int | None]:
        """Return the ids before the first end id, and that id or None.

        The engine omits its own end id from the output; further ones are sent to it as stop words,
        which it does not omit.
        """
        for place, token_id in enumerate(ids):
            if token_id in self.end_ids:
                return ids[:place], token_id
        return ids, None


class Preprocessor:
    """Validates requests against one engine and encodes them with its tokenizer.

    Args:
        guides: validates guides; None without guided decoding.
        cache_report: how the engine tells of its KV cache, if it does.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: TextTokenizer,
        capabilities: Capabilities,
        guides: GuideGate | None = None,
        cache_report: CacheReport | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._capabilities = capabilities
        self._guides = guides
        self._cache_report = cache_report
        self._encodings = EncodingQueue()
        self._stop_word_ids = StopWordIds(tokenizer)

    def engine_is_gone(self) -> None:
        """Note that the engine's process ended, with the guides that it had compiled."""
        if self._guides is not None:
            self._guides.engine_is_gone()

    async def prepare(
        self,
        request: GenerationRequest,
        request_ids: Iterator[str],
        index: int = 0,
        trace: CallTrace | None = None,
    ) -> list[PreparedRequest]:
        """Prepare each answer of a request.

        Args:
            request_ids: the engine's request ids.
            index: number of the first answer in its call.
            trace: of the call; an engine with spans of its own puts them below.

        Raises:
            RequestError: the engine does not support the request.
            QueueFull: too many prompts wait to be encoded, too many guides wait for their check, or
                the engine keeps too many.
            EngineUnavailable: the guide cannot be checked.
        """
        validate_capabilities(request, self._engine, self._capabilities)
        prompt = await encode_prompt(
            request,
            self._tokenizer,
            self._engine,
            self._encodings,
            control_tokens=self._capabilities.control_tokens_in_messages,
        )
        special = {
            token_id: word
            for word in request.stop_words
            if (token_id := self._stop_word_ids.special(word)) is not None
        }
        self._validate_ids(request)
        eos_ids = () if request.ignore_eos else self._tokenizer.eos_ids
        end_ids = tuple(dict.fromkeys((*eos_ids, *special, *request.stop_token_ids)))
        if request.guide is not None and not (eos_ids or special):
            name = request.name("guide")
            raise InvalidRequest(
                f"{name} needs the model's end of sequence to end the answer; do not ignore it.",
                param=name,
            )
        engine_request = self._engine_request(request, prompt, end_ids, next(request_ids))
        if trace is not None and self._engine.takes_trace_headers:
            engine_request.trace_headers = trace.headers()
        reasoning = self._plan_reasoning(request, prompt, engine_request.max_tokens)
        if self._guides is not None and request.guide is not None:
            guide = (
                self._guides.fix_blanks(request.guide) if request.fixes_blanks else request.guide
            )
            checked = await self._guides.admit(request, guide)
            engine_request.guide = checked.guide
            if self._engine.counts_guides:
                engine_request.guide_bytes = checked.kept_bytes
        first = PreparedRequest(
            request,
            prompt,
            engine_request,
            end_ids,
            special,
            StopWords(request.stop_words) if request.stop_words else NO_STOP_WORDS,
            index,
            reasoning,
        )
        return [first, *(_sibling(first, n, next(request_ids)) for n in range(1, request.n))]

    def _plan_reasoning(
        self, request: GenerationRequest, prompt: EncodedPrompt, max_tokens: int
    ) -> ReasoningPlan | None:
        """Plan to generate the reasoning apart from the answer; None if that is not needed.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for reasoning.
            InvalidRequest: beam search, which ends all beams at once.
        """
        words, limit = request.chat.reasoning, self._capabilities.reasoning_limit_tokens
        if words is None or prompt.reasoning == "over":
            return None
        if request.guide is None and limit is None:
            return None
        if request.beam_width > 1:
            reason = "serving.reasoning_limit_tokens" if request.guide is None else "a guide"
            raise InvalidRequest(
                f"{request.name('beam_width')} is {request.beam_width}; this model reasons, and "
                f"after reasoning {reason} takes one beam. Set it to 1.",
                param=request.name("beam_width"),
            )
        context_tokens = self._context_tokens(request)
        if (cache := self._capabilities.kv_cache_tokens) and len(prompt.ids) + max_tokens <= cache:
            context_tokens = min(context_tokens, cache)
        plan = ReasoningPlan(
            words,
            is_open=prompt.reasoning == "open",
            is_guided=request.guide is not None,
            limit=limit or context_tokens,
            prefix=request.chat.answer_prefix,
            context_tokens=context_tokens,
        )
        # The reasoning is part of the prompt of what follows it.
        closing = self._tokenizer.encode(plan.closing, add_special_tokens=False)
        longest = self._engine.max_input_tokens - len(closing)
        room = longest - len(prompt.ids)
        if room < 1:
            field = prompt_field(request)
            raise ContextLengthExceeded.describe(
                self._engine.max_sequence_tokens,
                f"{field} is {len(prompt.ids)} tokens long, which leaves no room for reasoning; "
                f"shorten it to less than {longest}",
                param=field,
            )
        return replace(plan, limit=min(plan.limit, room))

    def _validate_ids(self, request: GenerationRequest) -> None:
        largest, size = max(request.stop_token_ids, default=0), self._tokenizer.vocab_size
        if largest >= size:
            name = request.name("stop_token_ids")
            raise InvalidRequest(
                f"{name} holds the id {largest}; the model's ids end at {size - 1}.", param=name
            )

    def _engine_request(
        self,
        request: GenerationRequest,
        prompt: EncodedPrompt,
        end_ids: tuple[int, ...],
        request_id: str,
    ) -> EngineRequest:
        hints = (self._stop_word_ids.hint(word) for word in request.stop_words)
        return EngineRequest(
            request_id=request_id,
            input_ids=prompt.ids,
            max_tokens=self._tokens_to_generate(request, len(prompt.ids)),
            end_id=end_ids[0] if end_ids else None,
            pad_id=self._tokenizer.pad_id,
            # The backend takes one end id; send the others as stop words of one token.
            stop_words=[
                [token_id]
                for token_id in dict.fromkeys((*end_ids[1:], *hints))
                if token_id is not None
            ],
            bad_words=self._bad_word_ids(request.bad_words),
            streaming=_streams(request),
            beam_width=request.beam_width,
            sampling=_with_seed(request.sampling),
            return_log_probs=request.token_details or request.log_probs is not None,
            top_log_probs=request.log_probs or 0,
            prompt_log_probs=request.scores_prompt,
            guide=request.guide,
            lora_task_id=self._capabilities.adapter_of(request),
            logit_bias=request.logit_bias,
            vocab_size=self._capabilities.biased_tokens,
            cache_report=self._cache_report,
        )

    def _tokens_to_generate(self, request: GenerationRequest, prompt_tokens: int) -> int:
        """Return `max_tokens`, cut down to the rest of the context as TensorRT-LLM's server does.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for an answer, or the caller chose
                more than a context.
        """
        limit, context_tokens = request.max_tokens, self._context_tokens(request)
        if request.scores_prompt:  # engines have no request for no token
            limit = max(limit, 1)
        room = context_tokens - prompt_tokens
        if room < min(limit, 1):
            field = prompt_field(request)
            raise ContextLengthExceeded.describe(
                context_tokens,
                f"{field} is {prompt_tokens} tokens long, which leaves no room for an answer; "
                f"shorten it to at most {context_tokens - 1}",
                param=field,
            )
        if not request.max_tokens_given:
            return min(limit, room, self._cache_room(request, prompt_tokens))
        if limit > context_tokens:
            name = request.name("max_tokens")
            raise ContextLengthExceeded.describe(
                context_tokens,
                f"{name} is {limit} and {prompt_field(request)} is {prompt_tokens} tokens long; "
                f"lower {name} to at most {room}",
                param=name,
            )
        return min(limit, room)

    def _context_tokens(self, request: GenerationRequest) -> int:
        """Return the limit of prompt and answer together."""
        of_streams = self._capabilities.max_stream_tokens if _streams(request) else None
        return of_streams or self._engine.max_sequence_tokens

    def _cache_room(self, request: GenerationRequest, prompt_tokens: int) -> int:
        """Return the tokens per beam that fit into an empty KV cache, at least 1."""
        tokens = self._capabilities.kv_cache_tokens
        if tokens is None:
            return request.max_tokens
        return max(1, tokens // request.beam_width - prompt_tokens)

    def _bad_word_ids(self, words: tuple[str, ...]) -> list[list[int]]:
        """Encode each word as at the start of a text and after a space."""
        spellings = [spelling for word in words for spelling in (word, f" {word}")]
        return [
            self._tokenizer.encode(spelling, add_special_tokens=False) for spelling in spellings
        ]


def _streams(request: GenerationRequest) -> bool:
    """Return False for beams, which are ranked only when all have ended."""
    return request.beam_width == 1


def _with_seed(sampling: Sampling) -> Sampling:
    """Draw a missing seed: the engine's default is a constant, so answers would repeat."""
    return sampling if sampling.seed is not None else replace(sampling, seed=_draw(63))


def _sibling(first: PreparedRequest, number: int, request_id: str) -> PreparedRequest:
    """Derive a further answer with its own seed and id, without the tokens of the prompt.

    An echo with log probabilities is part of each answer.
    """
    prompt = first.prompt
    sampling = replace(first.engine_request.sampling, seed=(first.seed + number) % _SEEDS)
    return replace(
        first,
        prompt=prompt if first.request.scores_prompt else replace(prompt, tokens=()),
        engine_request=replace(first.engine_request, request_id=request_id, sampling=sampling),
        index=first.index + number,
    )
