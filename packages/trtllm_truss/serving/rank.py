"""Run a rank above 0 of a launcher's job until rank 0 ends the job."""

from __future__ import annotations

import logging
import signal
import threading
import time
from functools import partial
from pathlib import Path

from trtllm_truss.errors import ArtifactError, TritonError
from trtllm_truss.processes.child import sweep, temporary_folder
from trtllm_truss.processes.mpi_job import Rank, job_variables
from trtllm_truss.serving.mounted_files import MountedFiles
from trtllm_truss.serving.preparation import prepare
from trtllm_truss.serving.read_ahead import ReadAhead
from trtllm_truss.settings.loading import Environment, resolve_hosts
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.server.command import launcher
from trtllm_truss.triton.server.process import ServerProcess

logger = logging.getLogger(__name__)

_TICK_S = 0.5
_END_MARGIN_S = 15.0  # of rank 0: Triton's own time, plus the time to stop the HTTP server


def work(
    settings: Settings, environment: Environment, data_dir: Path, image: str | None, rank: Rank
) -> None:
    """Run a rank above 0 of a launcher's job until rank 0 ends the job.

    A launcher sends SIGTERM to all ranks at once. Rank 0 then lets requests finish and needs the
    others for that: they exit with it, after its time limit, or at a second signal.

    Args:
        settings: the operator's settings, equal on every rank.
        image: `base_image.image` of config.yaml.

    Raises:
        StartupError: the engine is unusable here, or the rank failed; the launcher stops the others
            when it sees this process's exit status.
    """
    settings = resolve_hosts(settings, environment)
    variables = environment.variables
    sweep()
    ahead = ReadAhead()
    prepared = prepare(settings, environment, image, read_ahead=ahead.begin, rank=rank)
    with temporary_folder() as folder:
        server = prepared.server(folder, in_job=True)
        command = launcher(
            server.installation,
            repository=prepared.render(data_dir, folder / "repository"),
            backends=server.backends,
            world_size=rank.size,
            environ=variables,
            ranks=prepared.engine.rank_launcher(variables),
            rank=rank.index,
        )
        run = ServerProcess(
            command,
            {**server.variables, **job_variables(variables)},
            on_line=partial(logger.info, "triton: %s"),
        )
        limits = settings.serving
        patience_s = limits.drain_notice_s + limits.drain_timeout_s + _END_MARGIN_S
        failed = threading.Event()
        with (
            MountedFiles(prepared.resolved.unchecked, failed.set).checking(),
            _Signals() as signals,
        ):
            logger.info("rank %d of %d starts", rank.index, rank.size)
            run.start()
            try:
                run.wait_until_ended(
                    _TICK_S, lambda: failed.is_set() or signals.are_older_than(patience_s)
                )
            except TritonError:
                if not signals.count:  # otherwise rank 0 may have exited first
                    raise
            finally:
                run.stop(0)
            logger.info("rank %d of %d has exited", rank.index, rank.size)
        if failed.is_set():
            raise ArtifactError("a mounted file of the engine differs; the log above names it.")


class _Signals:
    """Counts SIGTERM and SIGINT in the block instead of exiting."""

    def __init__(self) -> None:
        self._at_s: list[float] = []

    def __enter__(self) -> _Signals:
        self._before = {
            number: signal.signal(number, lambda *_: self._at_s.append(time.monotonic()))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def count(self) -> int:
        return len(self._at_s)

    def are_older_than(self, limit_s: float) -> bool:
        """Return True if the first signal is older than that, or if there was a second one."""
        is_old = self.count and time.monotonic() - self._at_s[0] > limit_s
        return bool(is_old) or self.count > 1
