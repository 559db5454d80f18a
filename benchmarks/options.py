"""Options of the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of all cases; None selects the default of the case.

    Attributes:
        work: folder for engines, configurations and the compiled backend.
        streams: concurrent requests.
        rounds: measurements per path; the paths take turns.
        seconds: duration of one measurement.
        requests: number of requests of the endurance case.
        readers: slow readers.
        megabytes: size of the download, in MiB.
        minutes: duration of the chaos case.
        seed: seed of its random choices.
        bodies: text in the names of the hostile bodies to send.
        server: "truss", or "own" for the server of `init --server own`; of the hostile case.
        native_model: model for Triton's own `generate_stream`.
        quick: tiny sizes, for a smoke test.
    """

    work: Path
    streams: tuple[int, ...] | None = None
    rounds: int = 3
    seconds: float | None = None
    requests: int | None = None
    readers: int | None = None
    megabytes: int | None = None
    minutes: float | None = None
    seed: int | None = None
    bodies: str = ""
    server: str = "truss"
    native_model: str = "ensemble"
    quick: bool = False

    def quickened(self) -> Options:
        """Replace unset sizes by the smallest ones."""
        return replace(
            self,
            streams=self.streams or (2,),
            rounds=1,
            seconds=self.seconds or 0.3,
            requests=self.requests or 20,
            readers=self.readers or 4,
            minutes=self.minutes or 0.4,
            quick=True,
        )
