"""A worker of NVIDIA Dynamo: its requests to ours, and our tokens to its chunks.

Dynamo's frontend speaks HTTP, tokenizes, applies chat templates and stop words, parses tool calls
and routes. The worker takes and gives token ids. Admission, checks, guides, deadlines and
supervision are those of `Service`, so a worker refuses what every other route refuses.

Source: `GenerateRequest` and `GenerateChunk` in `dynamo/common/backend/engine.py` of ai-dynamo
1.6.1.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from trtllm_truss.errors import InvalidRequest, SettingsError
from trtllm_truss.local_requests import is_loopback
from trtllm_truss.protocols.base import Defaults
from trtllm_truss.protocols.openai.body import parse_completion
from trtllm_truss.requests import REST_OF_CONTEXT, GenerationRequest, TokenDelta
from trtllm_truss.settings.loading import API_KEY_SECRET
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.server import LOOPBACK
from trtllm_truss.validation import shown

_UNSERVED = {
    **dict.fromkeys(("prompt_embeds", "multi_modal_data"), "prompts are tokens"),
    **dict.fromkeys(
        ("prefill_result", "bootstrap_info", "encoder_result"),
        "this worker does every step of a request",
    ),
    "bad_words_token_ids": "the engine has no such limit",
    "logprob_token_ids": "the engine chooses the alternatives that it reports",
    "structural_tag": "guided decoding takes a JSON schema, a regex, a choice or a grammar",
}
"""Fields that no protocol of ours has, and reasons for their refusal."""
_GUIDES = {"backend": "guided_decoding_backend"}
"""Guides whose fields are not called `guided_` and their name."""


_HOST_VARIABLES = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")
"""Addresses on which a worker listens; by default the one that the machine has on its network.

Sources in ai-dynamo/dynamo: `get_tcp_rpc_host_from_env` of lib/runtime/src/utils/ip_resolver.rs at
cbe9078b, and lib/runtime/src/config/environment_names.rs.
"""

_ON_ONE_HOST = ("file", "mem")
"""Values of `DYN_DISCOVERY_BACKEND` with which all processes share a host."""


def local_addresses(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which a worker of a single host listens on loopback.

    Dynamo asks for no key. With another discovery the frontend may be on another host, which must
    reach the worker; then there are none.
    """
    if variables.get("DYN_DISCOVERY_BACKEND") not in _ON_ONE_HOST:
        return {}
    return {name: LOOPBACK for name in _HOST_VARIABLES if not variables.get(name)}


def is_on_the_network(variables: Mapping[str, str]) -> bool:
    """Return whether other hosts can send requests to a worker, past any key of the frontend."""
    return not is_loopback(variables.get(_HOST_VARIABLES[0], ""))


def check_configuration(settings: Settings, defaults: Defaults, *, has_key: bool) -> None:
    """Refuse settings about text, of which a worker sees none, and about HTTP.

    Args:
        defaults: values of omitted fields.
        has_key: the secret `server_api_key` is declared or set.

    Raises:
        SettingsError: one is set.
    """
    if has_key:
        raise SettingsError(
            f"the secret {API_KEY_SECRET} is declared or set, but a worker of Dynamo asks nobody "
            "for a key: whoever reaches its port can generate. Remove the secret, and put a key in "
            "front of Dynamo's frontend."
        )
    if words := defaults.get("stop_words"):
        raise SettingsError(
            f"config.yaml: model_metadata.generation.stop_words is {shown(words)}; stop words are "
            "the frontend's, which has no defaults. Remove it, or set stop_token_ids."
        )
    if (limit := settings.serving.reasoning_limit_tokens) is not None:
        raise SettingsError(
            f"config.yaml: model_metadata.serving.reasoning_limit_tokens is {limit}; a worker of "
            "Dynamo sees no reasoning. Remove it."
        )


def read_request(
    request: Mapping[str, Any], defaults: Defaults, adapters: tuple[str, ...] = ()
) -> GenerationRequest:
    """Convert a request of Dynamo's frontend.

    The options have the names of OpenAI's completions, whose rules apply. Words and text are the
    frontend's: `stop`, `skip_special_tokens` and `include_stop_str_in_output` have no effect here.

    Args:
        request: a `GenerateRequest`.
        defaults: values of omitted fields.
        adapters: names of models that are adapters.

    Raises:
        RequestError: a field is unsupported or out of range.
    """
    # Fields that only some workers know are beside the others.
    more = _given(_given(request, "extra_args"), "sampling_options")
    sampling = _given(request, "sampling_options") | more
    ends = _given(request, "stop_conditions")
    output = _given(request, "output_options")
    guide = _given(sampling, "guided_decoding")
    _refuse_unserved({**request, **sampling, **ends, **output, **guide})
    for name in ("n", "guided_decoding", "include_stop_str_in_output", "detokenize"):
        sampling.pop(name, None)
    body: dict[str, Any] = {
        **sampling,
        **{name: ends[name] for name in ("max_tokens", "min_tokens", "ignore_eos") if name in ends},
        "cache_salt": _given(request, "routing").get("cache_salt"),
        "prompt": list(request["token_ids"]),
        **{_GUIDES.get(name, f"guided_{name}"): value for name, value in guide.items()},
    }
    if ids := ends.get("stop_token_ids"):
        body["stop_token_ids"] = ids
    visible = ends.get("stop_token_ids_visible") or ()
    if visible and not guide:
        # An end of sequence that also ends a tool call. The engine would keep it back; with it,
        # the frontend ends the answer.
        body["ignore_eos"] = True
    given = "max_tokens" in body or "max_tokens" in defaults
    (wanted,) = parse_completion(
        body if given else {**body, "max_tokens": REST_OF_CONTEXT}, defaults
    ).requests
    wanted.max_tokens_given = "max_tokens" in body
    # The frontend adds the model's own ends to every request.
    stops = (*wanted.stop_token_ids, *(ends.get("stop_token_ids_hidden") or ()))
    wanted.stop_token_ids = tuple(token_id for token_id in stops if token_id not in visible)
    if (model := request.get("model")) in adapters:
        wanted.model = model
    if (log_probs := output.get("logprobs")) is not None:
        # 1 is also what `logprobs: true` without alternatives becomes.
        wanted.log_probs = 0 if log_probs <= 1 else log_probs
    return wanted


def _refuse_unserved(fields: Mapping[str, Any]) -> None:
    for name, reason in _UNSERVED.items():
        if fields.get(name):
            raise InvalidRequest(f"{name} is given; {reason}. Leave it out.")
    if (answers := fields.get("n", 1)) != 1:
        raise InvalidRequest(
            f"n is {answers}; a worker of Dynamo answers a request once. Send {answers} requests."
        )
    if (thinking := fields.get("max_thinking_tokens")) is not None:
        raise InvalidRequest(
            f"max_thinking_tokens is {thinking}; this worker sees no reasoning. Leave it out."
        )
    if (alternatives := fields.get("prompt_logprobs")) is not None:
        raise InvalidRequest(
            f"prompt_logprobs is {alternatives}; this worker reports none of the prompt. Leave "
            "out prompt_logprobs, and echo, for which the frontend asks for them."
        )


def _given(request: Mapping[str, Any], group: str) -> dict[str, Any]:
    options = request.get(group) or {}
    return {name: value for name, value in options.items() if value is not None}


def to_chunk(delta: TokenDelta) -> dict[str, Any]:
    chunk: dict[str, Any] = {"token_ids": list(delta.ids), "index": 0}
    if delta.log_probs:
        chunk["log_probs"] = list(delta.log_probs)
        alternatives = delta.alternatives or [
            [pair] for pair in zip(delta.ids, delta.log_probs, strict=True)
        ]
        chunk["top_logprobs"] = [
            [
                {"rank": rank, "token_id": token_id, "token": None, "logprob": log_prob}
                for rank, (token_id, log_prob) in enumerate(pairs, 1)
            ]
            for pairs in alternatives
        ]
    if delta.end is not None:
        usage = delta.end.usage
        chunk["finish_reason"] = delta.end.reason.value
        chunk["completion_usage"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        if usage.cached_tokens is not None:
            chunk["completion_usage"]["prompt_tokens_details"] = {
                "cached_tokens": usage.cached_tokens
            }
    return chunk


class Publisher(Protocol):
    """The `KvEventPublisher` of Dynamo; hashes are signed."""

    def publish_stored(
        self,
        token_ids: list[int],
        num_block_tokens: list[int],
        block_hashes: list[int],
        parent_hash: int | None = None,
    ) -> None: ...

    def publish_removed(self, block_hashes: list[int]) -> None: ...


class _Block(NamedTuple):
    parent: int | None
    tokens: array[int]


class CachedBlocks:
    """The blocks of one KV cache that the router knows.

    TensorRT-LLM drops the oldest events of a full buffer, which a gap of their numbers shows. What
    was known before may be gone then, and the router forgets it. A block that follows one of those
    proves that this one is there, with all before it: they are published again.

    Source: `KVCacheEventManager` in cpp/tensorrt_llm/batch_manager/kvCacheEventManager.cpp of
    NVIDIA/TensorRT-LLM, near 1.2: a number for each event, a hash that depends on all tokens before
    the block too.
    """

    def __init__(self, publisher: Publisher, block_tokens: int) -> None:
        self._publisher = publisher
        self._block_tokens = block_tokens
        self._known: dict[int, _Block] = {}
        self._doubted: dict[int, _Block] = {}
        self._next_id: int | None = None
        self._window = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Publish an event of the engine, as `trtllm_backends.llm_api` sends it.

        A model with several attention windows has a cache for each, of which the longest counts.
        """
        if self._next_id not in (None, event["id"]):
            self._forget()
        self._next_id = event["id"] + 1
        window = event["window"] or 0
        if window > self._window:
            self._forget()
            self._doubted.clear()
            self._window = window
        if window < self._window:
            return
        if "stored" in event:
            parent, blocks = event["stored"]
            self._store(None if parent is None else _signed(parent), blocks)
        elif "removed" in event:
            self._remove([_signed(each) for each in event["removed"]])

    def clear(self) -> None:
        """Forget a cache that is gone; another one's events may follow."""
        self._forget()
        self._doubted.clear()
        self._next_id, self._window = None, 0

    def _store(self, parent: int | None, blocks: Sequence[tuple[int, list[int]]]) -> None:
        found = self._recalled(parent)
        if found is None:
            return  # its beginning is unknown, so no prompt can match
        for number, tokens in blocks:
            if len(tokens) != self._block_tokens:
                break  # the last one, of which the router knows nothing
            block_hash = _signed(number)
            found.append((block_hash, _Block(parent, array("i", tokens))))
            parent = block_hash
        if not found:
            return
        self._known.update(found)
        for block_hash, _ in found:
            self._doubted.pop(block_hash, None)
        self._publisher.publish_stored(
            [token for _, block in found for token in block.tokens],
            [self._block_tokens] * len(found),
            [block_hash for block_hash, _ in found],
            found[0][1].parent,
        )

    def _recalled(self, block_hash: int | None) -> list[tuple[int, _Block]] | None:
        """Return the doubted blocks up to one, the first one first; None if one is unknown."""
        found: list[tuple[int, _Block]] = []
        while block_hash is not None and block_hash not in self._known:
            block = self._doubted.get(block_hash)
            if block is None:
                return None
            found.append((block_hash, block))
            block_hash = block.parent
        return found[::-1]

    def _remove(self, hashes: Sequence[int]) -> None:
        for block_hash in hashes:
            self._doubted.pop(block_hash, None)
        if known := [each for each in hashes if self._known.pop(each, None) is not None]:
            self._publisher.publish_removed(known)

    def _forget(self) -> None:
        if self._known:
            self._publisher.publish_removed([*self._known])
        self._doubted, self._known = self._known, {}


def _signed(number: int) -> int:
    """Return the signed integer with the bits of an unsigned one of 64."""
    return number - 2**64 if number >= 2**63 else number
