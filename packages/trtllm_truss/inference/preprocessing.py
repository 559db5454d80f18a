"""Validate requests against the capabilities of an engine and convert them to engine requests."""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from trtllm_truss.decoding import meant
from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.engines.engine import Engine
from trtllm_truss.errors import ContextLengthExceeded, InvalidRequest
from trtllm_truss.guides.gate import GuideGate
from trtllm_truss.inference.call_parts import CallParts
from trtllm_truss.inference.encoding_queue import EncodingQueue
from trtllm_truss.inference.reasoning import ReasoningPlan
from trtllm_truss.inference.tokenization import EncodedPrompt, encode_prompt, prompt_field
from trtllm_truss.literals import counted_tokens
from trtllm_truss.releases import INPUTS, OWN_INPUTS, CacheReport, rows_for
from trtllm_truss.request_fields import OPTIONS, SAMPLING, RequestField, Sampling
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.settings.runtime import GRAMMAR_LIBRARY, GUIDES
from trtllm_truss.text.tokenizer import StopWordIds, TextTokenizer
from trtllm_truss.triton.client.engine_messages import EngineRequest
from trtllm_truss.triton.client.logits import logits_in_memory
from trtllm_truss.validation import is_unicode

if TYPE_CHECKING:
    from trtllm_truss.observability.tracing import CallTrace

_TOP_LOG_PROBS = 20
"""Maximum alternatives per token in TensorRT-LLM 1.3; 1.2 documents none."""

_GUIDE_TENSORS = re.compile(r"guided_decoding_guide(_type)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Limits that depend on both the settings and the engine.

    Attributes:
        max_beam_width: maximum number of beams per request.
        guides: guided decoding is enabled.
        lacks_guides: why guided decoding is unavailable (`Engine.lacks_guides`).
        adapters: LoRA adapters are supported.
        adapter_ids: ids of the adapters by name, if the engine has a fixed list.
        one_beam_width: every request must have `max_beam_width` beams.
        top_log_probs: maximum alternatives per token; 0 if there are none.
        prompt_log_probs: log probabilities of the prompt are available.
        logits_vocabulary: vocabulary size if the engine returns both as logits, otherwise 0.
        scores_beams: log probabilities and alternatives are available in beam search.
        biased_tokens: vocabulary size whose logits can be biased; 0 if none can.
        max_stream_tokens: limit of prompt and output of a stream; None for the engine's limit.
        kv_cache_tokens: capacity of the KV cache in tokens; None if unknown.
        control_tokens_in_messages: interpret special tokens in the text of messages.
        reasoning_limit_tokens: maximum reasoning tokens of a choice; None without a limit.
        unknown_fields: fields whose inputs this release does not have.
        refused_fields: error sentences for fields that this release's engine refuses, by field.
    """

    max_beam_width: int = 1
    guides: bool = False
    lacks_guides: str = ""
    adapters: bool = False
    adapter_ids: Mapping[str, int] = field(default_factory=dict)
    one_beam_width: bool = False
    top_log_probs: int = 0
    prompt_log_probs: bool = False
    logits_vocabulary: int = 0
    scores_beams: bool = True
    biased_tokens: int = 0
    max_stream_tokens: int | None = None
    kv_cache_tokens: int | None = None
    control_tokens_in_messages: bool = False
    reasoning_limit_tokens: int | None = None
    unknown_fields: tuple[RequestField, ...] = ()
    refused_fields: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, deployment: Deployment) -> Capabilities:
        settings, engine = deployment.settings, deployment.engine
        return cls(
            max_beam_width=engine.beam_limit(settings),
            adapters=engine.takes_adapters,
            adapter_ids={name: n for n, name in enumerate(settings.lora_adapters, 1)},
            one_beam_width=engine.one_beam_width,
            top_log_probs=_TOP_LOG_PROBS if engine.reports_top_log_probs else 0,
            prompt_log_probs=engine.reports_prompt_log_probs,
            logits_vocabulary=engine.logits_vocabulary,
            scores_beams=engine.scores_beams,
            biased_tokens=engine.biased_tokens,
            guides=engine.guided_decoding_backend(settings) is not None,
            lacks_guides=engine.lacks_guides(deployment.version),
            max_stream_tokens=engine.max_stream_tokens(settings.runtime),
            kv_cache_tokens=engine.kv_cache_tokens(settings, deployment.capacity),
            control_tokens_in_messages=settings.serving.control_tokens_in_messages,
            reasoning_limit_tokens=settings.serving.reasoning_limit_tokens,
            unknown_fields=_unknown_fields(deployment.version),
            refused_fields={
                row.name: sentence
                for row in (*SAMPLING, *OPTIONS)
                if (sentence := engine.why_refused(row.name))
            },
        )

    @property
    def logits_tokens(self) -> int:
        """Tokens whose logits may be in memory at once; 0 if the engine returns none."""
        return logits_in_memory(self.logits_vocabulary) if self.logits_vocabulary else 0

    def adapter_of(self, request: GenerationRequest) -> int | None:
        """Return the id of a request's adapter, chosen by number or by name."""
        return request.lora_task_id or self.adapter_ids.get(request.model or "")

    def asked_of_engine(self, request: GenerationRequest) -> GenerationRequest:
        """Omit a single alternative that is the chosen token, which most engines report alone.

        In greedy decoding the chosen token is the likeliest one in figures computed after penalties
        and guides, as most engines report them. Our own backends report figures from before
        penalties and guides.
        """
        if request.log_probs != 1 or request.scores_prompt:
            return request
        is_likeliest = meant(request.sampling, request.beam_width).is_greedy
        if self.top_log_probs and not self.logits_vocabulary:
            is_likeliest &= not _is_steered(request)
        return replace(request, log_probs=0) if request.top_is_chosen or is_likeliest else request


def _is_steered(request: GenerationRequest) -> bool:
    """Return True if something other than the model may decide the likeliest token."""
    steering = ("penalty", "end")
    return bool(request.logit_bias or request.guide or request.bad_words) or any(
        row.effect in steering and _has_effect(request, row) for row in SAMPLING
    )


def validate_capabilities(
    request: GenerationRequest, engine: Engine, capabilities: Capabilities
) -> None:
    """Validate a request against the engine.

    Raises:
        InvalidRequest: the engine does not support a field; the message uses the caller's name of
            the field.
    """
    _validate_beams(request, capabilities)
    _validate_adapter(request, capabilities)
    for row in (*SAMPLING, *OPTIONS):
        if row.name in capabilities.refused_fields and _has_effect(request, row):
            raise _refusal(request, row.attribute, capabilities.refused_fields[row.name])
    for row in capabilities.unknown_fields:
        if _has_effect(request, row):
            sentence = "is not an input of this TensorRT-LLM release; leave it out."
            raise _refusal(request, row.attribute, sentence)
    largest = max(request.logit_bias, default=-1)
    if largest >= capabilities.biased_tokens:
        sentence = (
            f"holds the id {largest}; the model's ids end at {capabilities.biased_tokens - 1}."
            if capabilities.biased_tokens
            else "is not supported by this engine; leave it out."
        )
        raise _refusal(request, "logit_bias", sentence)
    _validate_log_probs(request, capabilities)
    if request.guide is not None and not capabilities.guides:
        reason = capabilities.lacks_guides or "is off"
        remedy = "Leave it out."
        if not capabilities.lacks_guides:
            setting = f"model_metadata.runtime.{GUIDES}: {GRAMMAR_LIBRARY}"
            remedy = f"Leave it out, or set {setting} in config.yaml."
        sentence = f"cannot be followed: guided decoding {reason}. {remedy}"
        raise _refusal(request, "guide", sentence)
    least = request.sampling.min_tokens or 0
    if request.guide is not None and engine.guides_set_the_end and least > 1:
        # The engine would refuse it only after the reasoning.
        sentence = f"is not supported with {request.name('guide')} by {engine.answering}"
        raise _refusal(request, "min_tokens", f"is {least}; it {sentence}. Leave one of them out.")
    if request.guide is not None and not is_unicode(request.guide.text):
        raise _refusal(
            request,
            "guide",
            "contains a lone surrogate, which is not valid Unicode; send whole characters.",
        )


def _has_effect(request: GenerationRequest, row: RequestField) -> bool:
    if row.effect == "beams" and request.beam_width == 1:
        return False
    holder = request if row.effect is None else request.sampling
    return row.has_effect(getattr(holder, row.attribute))


def _unknown_fields(version: str | None) -> tuple[RequestField, ...]:
    known = {tensor.name for tensor in (*rows_for(INPUTS, version), *OWN_INPUTS)}
    return tuple(
        row for row in (*SAMPLING, *OPTIONS) if row.tensors and known.isdisjoint(row.tensors)
    )


def _validate_beams(request: GenerationRequest, capabilities: Capabilities) -> None:
    max_beams = capabilities.max_beam_width
    if request.beam_width > max_beams:
        raise _refusal(
            request,
            "beam_width",
            f"is {request.beam_width}; this engine has at most {max_beams}. Lower it.",
        )
    if capabilities.one_beam_width and request.beam_width != max_beams:
        raise _refusal(
            request,
            "beam_width",
            f"is {request.beam_width}; this engine runs all requests with {max_beams} beams "
            f"(runtime.max_beam_width). Set it to {max_beams}.",
        )
    if request.beam_width > 1 and request.n > 1:
        raise _refusal(
            request, "n", f"is {request.n}; beam search returns the best beam only. Set it to 1."
        )


def _validate_adapter(request: GenerationRequest, capabilities: Capabilities) -> None:
    if request.lora_task_id is not None and not capabilities.adapters:
        raise _refusal(
            request, "lora_task_id", "is given, but this engine takes no adapters; leave it out."
        )
    known = capabilities.adapter_ids
    if request.lora_task_id is not None and known and request.lora_task_id not in known.values():
        raise _refusal(
            request,
            "lora_task_id",
            f"is {request.lora_task_id}; the adapters are 1 to {len(known)} (lora_adapters).",
        )


def with_callers_field(refused: InvalidRequest, request: GenerationRequest) -> InvalidRequest:
    """Replace the engine's tensor names in an error about a guide with the caller's field name."""
    if request.guide is None:
        return refused
    name = request.name("guide")
    return InvalidRequest(_GUIDE_TENSORS.sub(name, refused.message), param=name)


def _validate_log_probs(request: GenerationRequest, capabilities: Capabilities) -> None:
    limit, scores_prompt = capabilities.top_log_probs, request.scores_prompt
    if scores_prompt and capabilities.prompt_log_probs and request.max_tokens <= 1:
        limit = _TOP_LOG_PROBS  # the logits of a prompt include those of the first token after it
    if (request.log_probs or 0) > limit:
        raise _refusal(request, "log_probs", _too_many_log_probs(request, limit))
    if scores_prompt and not (capabilities.prompt_log_probs and limit):
        few = " with more than one token after it" if capabilities.prompt_log_probs else ""
        raise _refusal(
            request,
            "echo",
            f"and {request.name('log_probs')} are both given; the engine has no log probabilities "
            f"of the prompt{few}. Omit one of them.",
        )
    if request.beam_width > 1 and not capabilities.scores_beams:
        field = "log_probs" if request.log_probs else "echo" if request.scores_prompt else None
        if field is not None:
            sentence = f"is not supported with {request.name('beam_width')} above 1 by this engine."
            raise _refusal(request, field, f"{sentence} Leave one of them out.")


def _too_many_log_probs(request: GenerationRequest, limit: int) -> str:
    if limit:
        return f"is {request.log_probs}; the engine returns at most {limit}. Lower it."
    return (
        f"is {request.log_probs}; the engine returns the log probability of the chosen token only, "
        "which is the likeliest one only in greedy decoding. Set it to 0, or to 1 with temperature "
        "0."
    )


def _refusal(request: GenerationRequest, attribute: str, sentence: str) -> InvalidRequest:
    name = request.name(attribute)
    return InvalidRequest(f"{name} {sentence}", param=name)


_SEEDS = 2**64
_draw = random.Random().getrandbits  # noqa: S311 - seeds are no secrets


@dataclass(slots=True)
class PreparedRequest:
    """One choice of a request, ready for the engine.

    Attributes:
        engine_request: the request for the whole choice, in the engine's terms.
        parts: parts shared by all choices of the call.
        index: number of the choice in its call.
        reasoning: reasoning that is generated apart from the text; None without it.
        call: state shared by the call's choices; None for a call with one choice.
    """

    request: GenerationRequest
    prompt: EncodedPrompt
    engine_request: EngineRequest
    parts: CallParts
    index: int = 0
    reasoning: ReasoningPlan | None = None
    call: Hashable = None

    @property
    def tokens(self) -> int:
        """KV cache tokens of prompt and maximum output, over all beams."""
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
            end_id: the end id in the output; None for the one the engine omits.
        """
        end = self.engine_request.end_id if end_id is None else end_id
        return None if end is None else self.parts.special_stop_words.get(end)

    def cut_at_end(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], int | None]:
        """Return the ids before the first end id, and that id or None.

        The engine omits its own end id from the output, but not further ones, which are sent as
        stop words.
        """
        end_ids = self.parts.end_ids
        for place, token_id in enumerate(ids):
            if token_id in end_ids:
                return ids[:place], token_id
        return ids, None


class Preprocessor:
    """Validates requests against one engine and encodes them with its tokenizer.

    Args:
        guides: validates guides; None without guided decoding.
        cache_report: how the engine reports its KV cache; None if it does not.
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
        """Record that the engine process exited and its compiled guides are gone."""
        if self._guides is not None:
            self._guides.engine_is_gone()

    async def prepare(
        self,
        request: GenerationRequest,
        request_ids: Iterator[str],
        index: int = 0,
        trace: CallTrace | None = None,
        before: CallParts | None = None,
    ) -> list[PreparedRequest]:
        """Prepare each choice of a request.

        Args:
            request_ids: the engine's request ids.
            index: number of the first choice in its call.
            trace: trace of the call; an engine with its own spans puts them below it.
            before: parts of the previous request; reused if that request differs in its prompt
                only.

        Raises:
            RequestError: the engine does not support the request.
            QueueFull: too many prompts wait to be encoded, too many guides wait for their check, or
                the engine holds too many guides.
            EngineUnavailable: the guide cannot be checked.
        """
        request = self._capabilities.asked_of_engine(request)
        parts = before
        if parts is None or not parts.serve(request):
            validate_capabilities(request, self._engine, self._capabilities)
            parts = CallParts(request, self._tokenizer, self._stop_word_ids, self._guides)
        if request.needs_engine:
            parts.begin_check()
        try:
            prompt = await encode_prompt(
                request,
                self._tokenizer,
                self._engine,
                self._encodings,
                control_tokens=self._capabilities.control_tokens_in_messages,
            )
        except BaseException:
            parts.drop_check()
            raise
        engine_request = self._engine_request(request, prompt, parts, next(request_ids))
        if trace is not None and self._engine.takes_trace_headers:
            engine_request.trace_headers = trace.headers()
        reasoning = None
        if request.needs_engine:
            reasoning = self._plan_reasoning(request, prompt, engine_request.max_tokens)
            if (checked := await parts.checked_guide()) is not None:
                engine_request.guide = checked.guide
                if self._engine.counts_guides:
                    engine_request.guide_bytes = checked.kept_bytes
        first = PreparedRequest(request, prompt, engine_request, parts, index, reasoning)
        return [first, *(_sibling(first, n, next(request_ids)) for n in range(1, request.n))]

    def _plan_reasoning(
        self, request: GenerationRequest, prompt: EncodedPrompt, max_tokens: int
    ) -> ReasoningPlan | None:
        """Plan to generate the reasoning apart from the text; None if that is not needed.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for reasoning.
            InvalidRequest: beam search is requested, which finishes all beams at once.
        """
        words, limit = request.chat.reasoning, self._capabilities.reasoning_limit_tokens
        if words is None or prompt.reasoning == "over" or request.max_tokens == 0:
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
        # The reasoning is part of the prompt of the second request.
        closing = self._tokenizer.encode(plan.closing, add_special_tokens=False)
        longest = self._engine.max_input_tokens - len(closing)
        room = longest - len(prompt.ids)
        if room < 1:
            field = prompt_field(request)
            raise ContextLengthExceeded.describe(
                self._engine.max_sequence_tokens,
                f"{field} is {counted_tokens(len(prompt.ids))} long, which leaves no room for "
                f"reasoning; shorten it to less than {longest}",
                param=field,
            )
        return replace(plan, limit=min(plan.limit, room))

    def _engine_request(
        self,
        request: GenerationRequest,
        prompt: EncodedPrompt,
        parts: CallParts,
        request_id: str,
    ) -> EngineRequest:
        capabilities = self._capabilities
        logits = self._logits(request, prompt)
        max_tokens = self._tokens_to_generate(request, len(prompt.ids), logits)
        sampling = _with_seed(request.sampling)
        if not request.needs_engine:
            return EngineRequest(request_id, prompt.ids, max_tokens, sampling=sampling)
        end_ids = parts.end_ids
        return EngineRequest(
            request_id=request_id,
            input_ids=prompt.ids,
            max_tokens=max_tokens,
            end_id=end_ids[0] if end_ids else None,
            pad_id=self._tokenizer.pad_id,
            stop_words=parts.engine_stop_words,
            bad_words=parts.engine_bad_words,
            streaming=_streams(request) and logits != "context",
            beam_width=request.beam_width,
            sampling=sampling,
            return_log_probs=request.shows_tokens and logits is None,
            top_log_probs=request.log_probs or 0,
            prompt_log_probs=request.scores_prompt,
            logits=logits,
            guide=request.guide,
            is_repeatable=not (self._engine.rounds_by_rows and _is_drawn(request)),
            lora_task_id=capabilities.adapter_of(request),
            logit_bias=request.logit_bias,
            vocab_size=capabilities.biased_tokens or capabilities.logits_vocabulary,
            cache_report=self._cache_report,
        )

    def _logits(
        self, request: GenerationRequest, prompt: EncodedPrompt
    ) -> Literal["generation", "context"] | None:
        """Return the logits that the last engine request asks for.

        Raises:
            InvalidRequest: the prompt's logits would take too much memory.
        """
        capabilities = self._capabilities
        if not (capabilities.logits_vocabulary and (request.log_probs or request.scores_prompt)):
            return None
        if not request.scores_prompt:
            return "generation"
        if len(prompt.ids) > capabilities.logits_tokens:
            field = prompt_field(request)
            raise InvalidRequest(
                f"{field} is {counted_tokens(len(prompt.ids))} long; with "
                f"{request.name('log_probs')} this engine echoes at most "
                f"{capabilities.logits_tokens}, because it returns the logits of all. "
                f"Shorten it, or leave {request.name('echo')} out.",
                param=field,
            )
        return "context" if request.max_tokens <= 1 else "generation"

    def _tokens_to_generate(
        self, request: GenerationRequest, prompt_tokens: int, logits: str | None
    ) -> int:
        """Return `max_tokens`, capped to the rest of the context as in TensorRT-LLM's server.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for output, or the caller requested
                more than the context.
        """
        if request.counts_only:
            return 0
        limit, context_tokens = request.max_tokens, self._context_tokens(request)
        if request.scores_prompt:  # engines refuse a request for zero tokens
            limit = max(limit, 1)
        room = context_tokens - prompt_tokens
        if room < min(limit, 1):
            field = prompt_field(request)
            raise ContextLengthExceeded.describe(
                context_tokens,
                f"{field} is {counted_tokens(prompt_tokens)} long, which leaves no room for an "
                f"answer; shorten it to at most {context_tokens - 1}",
                param=field,
            )
        most = self._capabilities.logits_tokens if logits == "generation" else limit
        if not request.max_tokens_given:
            return min(limit, room, most, self._cache_room(request, prompt_tokens))
        if limit > context_tokens:
            name = request.name("max_tokens")
            raise ContextLengthExceeded.describe(
                context_tokens,
                f"{name} is {limit} and {prompt_field(request)} is {counted_tokens(prompt_tokens)} "
                f"long; lower {name} to at most {room}",
                param=name,
            )
        if min(limit, room) > most:
            raise _refusal(
                request,
                "max_tokens",
                f"is {limit}; with {request.name('log_probs')} this engine generates at most "
                f"{most} tokens, because it returns the logits of all. Lower it.",
            )
        return min(limit, room)

    def _context_tokens(self, request: GenerationRequest) -> int:
        """Return the limit of prompt and output together."""
        of_streams = self._capabilities.max_stream_tokens if _streams(request) else None
        return of_streams or self._engine.max_sequence_tokens

    def _cache_room(self, request: GenerationRequest, prompt_tokens: int) -> int:
        """Return the tokens per beam that fit into an empty KV cache, at least 1."""
        tokens = self._capabilities.kv_cache_tokens
        if tokens is None:
            return request.max_tokens
        return max(1, tokens // request.beam_width - prompt_tokens)


def _streams(request: GenerationRequest) -> bool:
    """Return False for beam search, which ranks the beams only when all have finished."""
    return request.beam_width == 1


def _is_drawn(request: GenerationRequest) -> bool:
    """Return True if the seed is drawn here and the caller does not learn it."""
    return request.sampling.seed is None and not request.shows_tokens


def _with_seed(sampling: Sampling) -> Sampling:
    """Draw a missing seed: the engine's default is constant, so choices would repeat."""
    return sampling if sampling.seed is not None else replace(sampling, seed=_draw(63))


def _sibling(first: PreparedRequest, number: int, request_id: str) -> PreparedRequest:
    """Derive a further choice with its own seed and id, without the prompt's tokens.

    An echo with log probabilities is part of each choice.
    """
    prompt = first.prompt
    sampling = replace(first.engine_request.sampling, seed=(first.seed + number) % _SEEDS)
    return replace(
        first,
        prompt=prompt if first.request.scores_prompt else replace(prompt, tokens=()),
        engine_request=replace(first.engine_request, request_id=request_id, sampling=sampling),
        index=first.index + number,
    )
