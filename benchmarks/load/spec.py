"""Specification and result of a load process; each is one line of JSON on its pipes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["http", "grpc", "slow"]


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One load on one server.

    Attributes:
        kind: an HTTP client; a bare loop over `tritonclient.grpc.aio`; or HTTP clients that barely
            read.
        port: on loopback.
        path: path of HTTP requests.
        bodies: bodies of HTTP requests, sent in turn.
        prompt_ids: prompt of gRPC requests.
        tokens: tokens of each gRPC answer.
        streams: concurrent requests, each on its own connection; ignored with a rate.
        duration_s: no request starts later.
        requests: total number, instead of a duration.
        rate: requests per second at random times, independent of earlier ones.
        patience_s: running requests are aborted after this time without a byte for any client.
    """

    kind: Kind
    port: int
    path: str = ""
    bodies: tuple[str, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    tokens: int = 0
    streams: int = 1
    duration_s: float = 0.0
    requests: int | None = None
    rate: float | None = None
    patience_s: float = 30.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> LoadSpec:
        fields: dict[str, Any] = json.loads(line)
        for name in ("bodies", "prompt_ids"):
            fields[name] = tuple(fields[name])
        return LoadSpec(**fields)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a load.

    Attributes:
        tokens: tokens of all complete answers.
        elapsed_s: time from the start of the first request to the end of the last complete answer.
        outcomes: counts of `200`, other statuses, `cut` in the middle, `error` event, `lost` before
            a status, `stalled` for `patience_s`.
        ttft_ms: time to the first token of complete answers, from connecting: p50, p99, max.
        gap_ms: time between two arrivals of tokens in one answer: p50, p99, max.
        connect_ms: time to connect: p50, p99, max.
        pace_tok_s: tokens per second of one answer, from first to last: the median.
        tokens_per_arrival: mean over all answers.
        cpu_s: CPU time of the load process.
    """

    tokens: int
    elapsed_s: float
    outcomes: dict[str, int]
    ttft_ms: dict[str, float]
    gap_ms: dict[str, float]
    connect_ms: dict[str, float] = field(default_factory=dict)
    pace_tok_s: float = 0.0
    tokens_per_arrival: float = 0.0
    cpu_s: float = 0.0

    @property
    def tok_s(self) -> float:
        """Tokens per second."""
        return self.tokens / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def failed(self) -> int:
        """Requests without a complete answer."""
        return sum(count for outcome, count in self.outcomes.items() if outcome != "200")
