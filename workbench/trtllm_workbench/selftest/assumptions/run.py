"""Run the checks of the table: on the installed library, and on each served model.

The assumptions here are about engines of `trtllm-build` behind Triton's `tensorrtllm` backend. In
`source`, TL is NVIDIA/TensorRT-LLM, TB is triton-inference-server/tensorrtllm_backend; "near" means
a copy of about that release, not its tag.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_truss.processes.child import child_environment
from trtllm_truss.releases import holds
from trtllm_workbench.selftest.assumptions import served
from trtllm_workbench.selftest.assumptions.checkpoints import CHECKPOINTS
from trtllm_workbench.selftest.assumptions.served import (
    Assumption,
    Installed,
    OfLibrary,
    OfServer,
    Served,
    Unchecked,
    library_says,
)
from trtllm_workbench.selftest.probes import library as library_program
from trtllm_workbench.selftest.served_model import CheckVerdict, Figures, ServedModel, run_check
from trtllm_workbench.selftest.spawning import kill_a_worker, probe

_EXECUTOR = "TL `cpp/tensorrt_llm/executor/executorImpl.cpp`"
_TEXT = "a text of `libtensorrt_llm.so`"
_NEEDS_FAILURE = Unchecked("it needs an engine that fails to load")

ENGINES: tuple[Assumption, ...] = (
    Assumption(
        id="stream-limit",
        since="0.12",
        sentence=(
            "A stream needs prompt + `max_tokens` − 1 ≤ longest prompt, unless the policy is "
            "`guaranteed_no_evict` or chunks are on"
        ),
        source=(
            f"{_EXECUTOR}, `fetchNewRequests`, near 0.19 and near 1.1; TB de5f3f3 (November 2024, "
            "0.15) tests it. 0.12 to 0.14: assumed"
        ),
        otherwise="the limit is set without need",
        check=OfLibrary(_TEXT, library_says("unless streaming is disabled")),
    ),
    Assumption(
        id="longest-prompt",
        sentence=(
            "The longest prompt is `max_seq_len` − 1 with chunks, else also at most "
            "`max_num_tokens`"
        ),
        source="TL `cpp/include/tensorrt_llm/batch_manager/trtGptModel.h`, near 1.0",
        otherwise="prompts get the executor's error as 400",
        check=OfServer("the longest prompt, and one token more", served.longest_prompt),
    ),
    Assumption(
        id="policy-fallback",
        until="0.12",
        sentence=("The backend replaces `max_utilization` by `guaranteed_no_evict` without chunks"),
        source=(
            "TB v0.7.1:144, v0.8.0:164, v0.10.0:272, v0.11.0:274, "
            "`inflight_batcher_llm/src/model_instance_state.cc`"
        ),
        otherwise="long streams get the executor's error as 400",
        check=Unchecked("this project never sets `max_utilization` there"),
    ),
    Assumption(
        id="chunks-need-paged-context",
        since="0.17",
        sentence=("Chunks need paged context FMHA, and no recurrent layers, or the load fails"),
        source=("TL `cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp`, near 0.17"),
        otherwise="none: chunks are on only there",
        check=OfLibrary(_TEXT, library_says("hunked context requires context FMHA")),
    ),
    Assumption(
        id="encoder-needs-no-evict",
        sentence="An engine with an encoder refuses every request under `max_utilization`",
        source="as `stream-limit`",
        otherwise="none",
        check=Unchecked("it needs an engine with an encoder"),
    ),
    Assumption(
        id="ids-are-numbers",
        until="0.10",
        sentence=(
            "The digits that an id begins with are the request's number, for `stop` too; 0.7 "
            "refuses other texts"
        ),
        source=(
            "TB v0.7.0 to v0.9.0 `inflight_batcher_llm/src/utils.cc:142-174`, "
            "`work_items_queue.cc:59`"
        ),
        otherwise="none: numbers are texts too",
        check=Unchecked("one of two requests with a number in common would stop the other"),
    ),
    Assumption(
        id="ids-are-texts",
        since="0.10",
        sentence="Any text is an id",
        source=(
            "TB v0.10.0 `inflight_batcher_llm/src/model_instance_state.cc`, "
            "`mTritonRequestIdToRequestIds`"
        ),
        otherwise="requests are refused",
        check=OfServer("a request with a text as its id", served.text_id),
    ),
    Assumption(
        id="rank-files-by-stage",
        sentence=(
            "Process *w* of the job opens the file of stage `pp − 1 − w // tp` and place `w % tp` "
            "in it"
        ),
        source=f"{_EXECUTOR}, `initializeWorkers`, near 0.19 and near 1.1",
        otherwise=(
            'with several hosts and `pipeline_parallelism` the load fails: "Error opening engine '
            'file"'
        ),
        check=Unchecked("an engine's files are closed once they are loaded"),
    ),
    Assumption(
        id="failed-rank-waits",
        sentence="A rank that fails to load waits in `MPI_Finalize`, and the job with it",
        source=(
            "TL 0caf05f7 `cpp/tensorrt_llm/runtime/utils/mpiUtils.cpp`, `initialize`; measured "
            "with Open MPI 4.1.8 and 5.0.11"
        ),
        otherwise="none: the start fails as well when the job ends by itself",
        check=_NEEDS_FAILURE,
    ),
    Assumption(
        id="failed-load-is-logged",
        sentence=(
            "Triton logs \"failed to load '…' version …: \" for a model that does not load, and "
            "exits"
        ),
        source=(
            "triton-inference-server/core `src/model_lifecycle.cc`, server `src/main.cc`, r23.10 "
            "to r26.07"
        ),
        otherwise="the start fails after `serving.start_timeout_s`",
        check=_NEEDS_FAILURE,
    ),
    Assumption(
        id="cuda-errors-stay",
        sentence=(
            "After an error of CUDA or NCCL the executor fails all active requests, goes on and "
            "stays ready; for all of NCCL and certain ones of CUDA every later call fails too"
        ),
        source=(
            f"{_EXECUTOR}, `forwardAsync`, `forwardSync`, near 0.19 and near 1.1; the text: TL "
            "`cpp/include/tensorrt_llm/common/cudaUtils.h`, `check`, and "
            "`cpp/include/tensorrt_llm/runtime/utils/multiDeviceUtils.h`, `TLLM_NCCL_CHECK`; which "
            "errors: `cudaError_t` in NVIDIA's CUDA Runtime API reference"
        ),
        otherwise=(
            "an unknown text restarts the engine after `serving.hang_timeout_s` of failures"
        ),
        check=OfLibrary(
            _TEXT, library_says("CUDA runtime error in", "Encountered an error in forward")
        ),
    ),
    Assumption(
        id="one-width-only",
        until="0.10",
        sentence=(
            "Every request must have exactly `max_beam_width` beams, which is 1 there unless set"
        ),
        source=(
            "TL issue 1282: an engineer of NVIDIA says so of the executor in March 2024 (0.8); TB "
            "issue 154 has the assertion, `trtGptModelInflightBatching.cpp:401`"
        ),
        otherwise="none",
        check=OfLibrary(_TEXT, library_says("differs from the max beam width")),
    ),
    Assumption(
        id="widths-may-differ",
        since="0.10",
        sentence="Requests of several widths may be mixed; one width runs at a time",
        source=(
            f"{_EXECUTOR}, `getLeaderNewReqWithIds`, near 0.19; TL pull request 3082 (March 2025) "
            "says of the releases before that requests in one batch have one width. 0.10 to "
            "0.17: assumed"
        ),
        otherwise="set `runtime.max_beam_width: 1`",
        check=OfServer("requests of one beam and of two at once", served.mixed_widths),
    ),
    Assumption(
        id="tensorrt-of-0.9.0",
        since="0.9",
        until="0.10",
        sentence=(
            "An engine of 0.9.0 was built with TensorRT 9.3.0, which 24.04 has and 24.05 has not"
        ),
        source=(
            "the pin of `tensorrt` in TL v0.9.0; triton-inference-server/server "
            "`docs/introduction/compatibility.md`"
        ),
        otherwise="`tensorrt_mismatch` in the log names the image",
        check=Unchecked("it is about two images, of which one machine has one"),
    ),
    Assumption(
        id="poll-period-unused",
        sentence="`recv_poll_period_ms` has no effect without an orchestrator",
        source=f"{_EXECUTOR}, near 1.1; read from TB v0.13.0 on, not in v0.12.0",
        otherwise="none: it is passed on",
        check=Unchecked("the absence of an effect does not show from outside"),
    ),
    Assumption(
        id="statistics-while-running",
        sentence="Statistics of the executor are published only while requests run",
        source=(
            "TL `triton_backend/inflight_batcher_llm/src/custom_metrics_reporter.cc`, near 1.1"
        ),
        otherwise="none",
        check=Unchecked("an idle executor's statistics do not tell when they were published"),
    ),
    Assumption(
        id="reused-blocks",
        since="0.16",
        sentence=(
            "Each response to a request with `return_perf_metrics`, before 0.19 "
            "`return_kv_cache_reuse_stats`, has `kv_cache_reused_blocks`; the last block may be "
            "used in part"
        ),
        source=(
            "TL `triton_backend/inflight_batcher_llm/src/model_instance_state.cc`, "
            "`fillTritonResponse`, near 1.1; TB v0.16.0 and v0.18.2 "
            "`inflight_batcher_llm/src/model_instance_state.cc`, `utils.cc`; TL "
            "`cpp/tensorrt_llm/batch_manager/llmRequest.cpp`, `createResult`, and "
            "`kvCacheManager.cpp`, `loadOrAllocateBlocks`, near 1.1"
        ),
        otherwise="`cached_tokens` is absent, or wrong by more than a block",
        check=OfServer("a prompt, twice", served.cached_tokens),
    ),
    Assumption(
        id="logits-of-steps",
        since="0.19",
        sentence=(
            "A response of a stream has the logits of its own tokens in `generation_logits`, "
            "before penalties and guides; `context_logits` has a row for each token of the prompt, "
            "the last for the first token after it"
        ),
        source=(
            "TL `cpp/tensorrt_llm/batch_manager/llmRequest.cpp`, `createResult`, "
            "`handleContextLogits.cpp` and `handleGenerationLogits.cpp`, near 1.0; the shapes: TB "
            "v0.19.0 `inflight_batcher_llm/src/model_instance_state.cc:1105-1172`, "
            "`fillTritonResponse`"
        ),
        otherwise="log probabilities of alternatives and prompts are those of other tokens",
        check=OfServer("a token after a prompt, scored in both ways", served.logits),
    ),
    Assumption(
        id="logits-are-refused",
        since="0.19",
        sentence=(
            "The executor refuses a request for logits that the build did not gather, and "
            "allocates them for the whole prompt and all of `request_output_len`"
        ),
        source=(
            f"{_EXECUTOR}, `fetchNewRequests`, near 1.0; TL "
            "`cpp/include/tensorrt_llm/batch_manager/llmRequest.h`, `allocGenerationLogitsHost`"
        ),
        otherwise="none: this project refuses them before",
        check=OfLibrary(_TEXT, library_says("gather_generation_logits must be enabled")),
    ),
    Assumption(
        id="ranks-need-no-tcp",
        sentence="Ranks of one host need no TCP: `OMPI_MCA_btl=^tcp`",
        source=(
            "measured with Open MPI 4.1.8 and 5.0.11; HPC-X with UCX has its own transport, which "
            "`UCX_TLS` restricts: open-mpi/ompi issue 9889"
        ),
        otherwise=(
            "ranks listen on more addresses ([security.md](security.md)); set `UCX_TLS=^tcp`"
        ),
        check=OfServer("what the server's processes listen on", served.no_public_ports),
    ),
    Assumption(
        id="ranks-are-killed",
        sentence=(
            "Open MPI kills all ranks when one has died, and at its own SIGTERM, so several ranks "
            "end without Triton's own shutdown"
        ),
        source=(
            "measured. 5.0.11 does at once; 4.1.8 2.0 s after a death, or 9.0 s with "
            "`OMPI_MCA_odls_base_sigkill_timeout=5`, which would let them end, and 0.01 s with 0, "
            "which is set here"
        ),
        otherwise="none: GPU memory is freed by the driver",
        check=Unchecked("nothing that a client sees follows from it"),
    ),
    Assumption(
        id="stop-needs-an-active-request",
        sentence=(
            "`stop`, or a cancelled call, ends a request only once it is active, not in the "
            "executor's queue"
        ),
        source=f"{_EXECUTOR}, `terminateCancelledRequests`, near 1.1",
        otherwise="none",
        check=Unchecked("admission keeps the executor's queue too short to show it"),
    ),
    Assumption(
        id="guides-are-freed",
        since="1.1",
        sentence="XGrammar drops the oldest guides above `XGRAMMAR_CACHE_LIMIT_GB`, by default 1",
        source=(
            "TL `cpp/tensorrt_llm/batch_manager/guidedDecoder.cpp` near 1.1.0rc6 and at 2a9abd95, "
            "`tensorrt_llm/_torch/pyexecutor/grammar_matcher.py` near 1.1; no limit in 1.0.0rc4"
        ),
        otherwise="the engine's memory grows with each new guide",
        check=OfLibrary(_TEXT, library_says("XGRAMMAR_CACHE_LIMIT_GB")),
    ),
)

STEP = "assumptions"
TABLES: tuple[tuple[Served, tuple[Assumption, ...]], ...] = (
    ("engine", ENGINES),
    ("checkpoint", CHECKPOINTS),
)
NOT_INSTALLED = "TensorRT-LLM is not installed"
_IMPORT_LIMIT_S = 120.0
_NO_USAGE_STATISTICS = {"TRTLLM_NO_USAGE_STATS": "1", "TELEMETRY_DISABLED": "true"}
_LAST_CHARACTERS = 300


class Outcome(str, Enum):
    """The outcome of a row; values are those of the report."""

    HELD = "held"
    FELL_SHORT = "fell short"
    SKIPPED = "skipped"
    NOT_CHECKED = "not checked"
    NOT_RUN = "not run"


_OUTCOMES = {
    CheckVerdict.HELD: Outcome.HELD,
    CheckVerdict.FELL_SHORT: Outcome.FELL_SHORT,
    CheckVerdict.COULD_NOT_RUN: Outcome.SKIPPED,
}


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of one row.

    Attributes:
        id: of the row.
        about: engines or checkpoints.
        subject: the served model; empty for the library.
        outcome: what came out.
        detail: one line.
        figures: measured values by name.
    """

    id: str
    about: Served
    subject: str
    outcome: Outcome
    detail: str
    figures: Figures = field(default_factory=dict)


def find_installed(
    runtime: TensorRtLlm, folder: Path, limit_s: float = _IMPORT_LIMIT_S
) -> Installed | None:
    """Describe the TensorRT-LLM of this machine; None if none is installed.

    Args:
        runtime: what was found of it.
        folder: where its Python runs.
        limit_s: the time that its import may take.
    """
    if not runtime.installed or runtime.version is None:
        return None
    if runtime.python is None:
        problem = "no Python of this machine can import tensorrt_llm"
        return Installed(runtime.version, library=runtime.library, problem=problem)
    command = [str(runtime.python), str(Path(library_program.__file__))]
    environment = {**child_environment(os.environ), **_NO_USAGE_STATISTICS}
    with ThreadPoolExecutor() as pool:
        death = pool.submit(kill_a_worker, runtime, folder)
        ended = probe(command, environment, folder, limit_s)
    if (facts := ended.found) is None:
        last = " ".join(ended.output.split())[-_LAST_CHARACTERS:]
        problem = f"tensorrt_llm cannot be imported: {last}"
        if ended.status is None:
            problem = f"the import of tensorrt_llm took more than {limit_s:.0f} s"
        return Installed(runtime.version, library=runtime.library, problem=problem)
    facts = {**facts, **death.result()}
    package = Path(facts["folder"])
    library = runtime.library or package / "libs" / "libtensorrt_llm.so"
    return Installed(str(facts["version"]), package, library if library.is_file() else None, facts)


@dataclass(slots=True)
class Rows:
    """The rows of a run.

    Attributes:
        installed: TensorRT-LLM; None if there is none.
        results: so far.
    """

    installed: Installed | None
    results: list[RowResult] = field(default_factory=list)

    def of_library(self) -> Iterator[RowResult]:
        """Check the rows about the installed library, and state why others are not checked."""
        for about, row in _rows():
            if isinstance(row.check, Unchecked):
                yield self._add(row, about, Outcome.NOT_CHECKED, row.check.why)
            elif self.installed is None:
                yield self._add(row, about, Outcome.NOT_RUN, NOT_INSTALLED)
            elif reason := _not_about(about, row, self.installed.version):
                yield self._add(row, about, Outcome.SKIPPED, reason)
            elif isinstance(row.check, OfLibrary):
                yield self._run(row, about, "", partial(row.check.run, self.installed))

    def of_server(self, subject: str, model: ServedModel) -> Iterator[RowResult]:
        """Check the rows about a served model; none without TensorRT-LLM."""
        if self.installed is None:
            return
        for about, row in _rows():
            is_about = not _not_about(about, row, self.installed.version)
            if about == model.kind and is_about and isinstance(row.check, OfServer):
                yield self._run(row, about, subject, partial(row.check.run, model))

    def rest(self) -> Iterator[RowResult]:
        """Skip the rows about models that were not served."""
        done = {(result.about, result.id) for result in self.results}
        for about, row in _rows():
            if (about, row.id) not in done:
                yield self._add(row, about, Outcome.SKIPPED, f"no {about} was served")

    def _run(self, row: Assumption, about: Served, subject: str, check: partial) -> RowResult:  # type: ignore[type-arg]
        found = run_check(subject, STEP, row.id, check)
        return self._add(row, about, _OUTCOMES[found.verdict], found.detail, subject, found.figures)

    def _add(
        self,
        row: Assumption,
        about: Served,
        outcome: Outcome,
        detail: str,
        subject: str = "",
        figures: Figures | None = None,
    ) -> RowResult:
        result = RowResult(row.id, about, subject, outcome, detail, figures or {})
        self.results.append(result)
        return result


def _rows() -> Iterator[tuple[Served, Assumption]]:
    for about, table in TABLES:
        for row in table:
            yield about, row


def _not_about(about: Served, row: Assumption, version: str) -> str:
    """Return why a row is not about a release; empty if it is."""
    if not holds("serves_engines" if about == "engine" else "serves_checkpoints", version):
        return f"this release serves no {about}s"
    return "" if row.is_about(version) else f"it is about other releases: {row.releases}"
