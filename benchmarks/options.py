"""What the command line decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of all cases; what is None is the case's own choice.

    Attributes:
        work: for engines, configurations and the compiled backend.
        streams: requests at once.
        rounds: how often each path is measured; the paths take turns.
        seconds: of one measurement.
        requests: of the endurance case.
        readers: slow readers.
        minutes: of the chaos case.
        seed: of its random choices.
        native_model: whose `generate_stream` is measured as Triton's own path.
        quick: sizes that show that it works and measure nothing.
    """

    work: Path
    streams: tuple[int, ...] | None = None
    rounds: int = 3
    seconds: float | None = None
    requests: int | None = None
    readers: int | None = None
    minutes: float | None = None
    seed: int | None = None
    native_model: str = "ensemble"
    quick: bool = False

    def quickened(self) -> Options:
        """The smallest sizes, where none were asked for."""
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
