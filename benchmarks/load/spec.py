"""What a load process is asked for and what it answers; both travel as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["http", "grpc", "slow"]


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One load on one server.

    Attributes:
        kind: an HTTP client; a bare loop over `tritonclient.grpc.aio`; or HTTP clients that hardly
            read.
        port: on loopback.
        path: of HTTP.
        bodies: of HTTP requests, sent in turn.
        prompt_ids: the prompt of gRPC requests.
        tokens: of each gRPC answer.
        streams: requests at once, each on a connection of its own. With a rate: none.
        duration_s: requests begin until then.
        requests: requests in all, in place of a duration.
        rate: requests a second that begin at random moments, whether or not others have ended.
        patience_s: after so long without a byte for anybody, what still runs is given up.
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
        """One line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> LoadSpec:
        """The reverse of `to_json`."""
        fields: dict[str, Any] = json.loads(line)
        for name in ("bodies", "prompt_ids"):
            fields[name] = tuple(fields[name])
        return LoadSpec(**fields)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load saw.

    Attributes:
        tokens: of all answers that came whole.
        elapsed_s: from the first request's beginning to the end of the last whole answer.
        outcomes: how many requests ended how: `200`, another status, `cut` in the middle, `error`
            event, `lost` before a status, `stalled` when patience ended.
        ttft_ms: time to the first token of whole answers, connecting included: p50, p99, max.
        gap_ms: between two arrivals of tokens in one answer: p50, p99, max.
        connect_ms: time to connect: p50, p99, max.
        pace_tok_s: tokens a second of one answer, from its first to its last: the median.
        tokens_per_arrival: mean over all answers.
        cpu_s: of the load process while it ran.
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
        """Tokens a second."""
        return self.tokens / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def failed(self) -> int:
        """Requests without a whole answer."""
        return sum(count for outcome, count in self.outcomes.items() if outcome != "200")
