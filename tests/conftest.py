"""Server marks, groups for the workers, temporary files and a check for leftovers."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.fakes.tensorrt_llm import VERSIONS as LLM_API_VERSIONS
from tests.support.left_behind import LeftBehind
from tests.support.scheduling import FailureNames, Scheduler, not_run
from tests.support.shared_tls import share_tls_contexts
from tests.support.warm_python import end_zygote

TESTS = Path(__file__).parent
collect_ignore = ["clients", "dynamo_fleet", "gpu_host"]  # run in environments of their own
SERVER_FOLDERS = ("end_to_end", "backends/triton_native")
SERVER_MODULES = "tests.end_to_end"
LLM_API_MODULES = ("test_predict", "test_sampling")
"""Modules whose tests of the shared server run with the LLM API too, without `--engines all`."""
OWN_SERVER_MODULES = (
    "test_guard",
    "test_predict",
    "test_openai",
    "test_messages",
    "test_responses",
)
"""Modules whose tests of the shared server run with our own HTTP server too, without
`--servers all`."""
SERVER_FIXTURES = frozenset(
    {
        *("make_triton", "model_folder", "remote_api", "smollm2_checkpoint", "triton"),
        "warm_triton",
    }
)
LIGHT_SERVER_FIXTURES = frozenset({"evil", "fake_triton", "hub", "s3"})
"""Servers that start in milliseconds; the tests of a file stay together."""
SHARED_FIXTURES = (
    *(
        "context",
        "checkpoint",
        "laid_out",
        "model_folder",
        "engine",
        "native",
        "remote_api",
        "server",
        "smollm2_checkpoint",
    ),
    *("page", "gpu_server", "slow_thinker", "thinker", "triton", "restarting", "tool_server"),
    *("warm_triton", "wheel"),
)
"""Shared servers and models; one worker runs all tests of each."""

LONG_GROUPS = ("end_to_end/server/cpu", "end_to_end/server/1.2.1", "engines/model_folder")
"""Groups that would end after all others if they began later."""

MOST_WORKERS = 4
MEMORY = "/dev/shm"
LEAST_MEMORY_BYTES = 1 << 30
RUNNING: set[str] = set()
ROUND = "round"
"""Name of the property with the times of one round of a test."""
LEFT_BEHIND = pytest.StashKey[LeftBehind]()
LEFT = pytest.StashKey[list[str]]()


def memory_folder() -> str | None:
    """Return a folder in memory for many small files; None without a large one.

    Each server lays out hundreds of files, and ext4 slows down by ten times where as many were
    deleted a moment ago.
    """
    try:
        status = os.statvfs(MEMORY)
    except OSError:
        return None
    is_large = status.f_bavail * status.f_frsize > LEAST_MEMORY_BYTES
    return MEMORY if is_large and not status.f_flag & os.ST_NOEXEC else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engines",
        choices=("some", "all"),
        default="some",
        help="all: run tests of the LLM API with each version of it, of the serving path with "
        "each kind of engine, and those with the mark `thorough`",
    )
    parser.addoption(
        "--servers",
        choices=("some", "all"),
        default="some",
        help="all: run all tests of the shared server with Truss's HTTP server and with our own",
    )
    parser.addoption(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="harm each server so many times in each way",
    )
    parser.addoption(
        "--screenshots", action="store_true", help="rewrite docs/screenshots, in the browser"
    )
    parser.addoption(
        "--pulse-minutes",
        type=float,
        default=0,
        metavar="N",
        help="watch the console's page in the browser for so long; its memory must not grow",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the kinds of engine of a test, and the version of the LLM API's fake.

    By default the version alternates over modules; `RELEASES` of a module names its own.
    """
    runs_all = metafunc.config.getoption("--engines") == "all"
    if "llm_api_version" in metafunc.fixturenames:
        number = sum(metafunc.module.__name__.encode()) % len(LLM_API_VERSIONS)
        one = LLM_API_VERSIONS[number : number + 1]
        chosen = LLM_API_VERSIONS if runs_all else one
        versions = getattr(metafunc.module, "RELEASES", chosen)
        metafunc.parametrize("llm_api_version", versions, scope="module")
    if "server" in metafunc.fixturenames and metafunc.module.__name__.startswith(SERVER_MODULES):
        few = metafunc.module.__name__.endswith(LLM_API_MODULES)
        versions = LLM_API_VERSIONS if runs_all else LLM_API_VERSIONS[: int(few)]
        with_own = metafunc.config.getoption(
            "--servers"
        ) == "all" or metafunc.module.__name__.endswith(OWN_SERVER_MODULES)
        kinds = ("cpu", *(("own",) if with_own else ()), *versions)
        metafunc.parametrize("server", kinds, indirect=True, scope="session")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session and its workers a separate folder for temporary files."""
    share_tls_contexts()
    load_profile(config.getoption("--engines") == "all")
    gc.disable()  # the collection makes objects and no garbage
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # tests expect no GPU, or lay out their own
    if not hasattr(config, "workerinput"):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.gettempdir()  # `tmp_path` is not moved
        os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="truss-tests-", dir=memory_folder())
        tempfile.tempdir = None
        os.environ["HF_HOME"] = f"{os.environ['TMPDIR']}-hub"  # before huggingface_hub reads it
    elif [Path(config.rootpath, each) for each in config.args] == [TESTS]:
        config.args = in_turns(config.workerinput)


def load_profile(is_thorough: bool) -> None:
    """Let no test of hypothesis depend on a clock or on chance.

    Its own profile fails an example that takes 200 ms, and examples that are made too slowly: one
    pause of a busy machine is enough.
    """
    settings.register_profile(
        "suite",
        deadline=None,
        derandomize=True,
        max_examples=100 if is_thorough else 30,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("suite")


def in_turns(worker: dict[str, Any]) -> list[str]:
    """Return the folders of the tests, for each worker from another one on.

    A worker then reads most files with the assertions that another worker has rewritten.
    """
    names = sorted({each.name for each in TESTS.iterdir() if each.is_dir()} - {*collect_ignore})
    folders = [str(TESTS / name) for name in names]
    number = int(worker["workerid"].removeprefix("gw"))
    first = number * len(folders) // worker["workercount"]
    return folders[first:] + folders[:first]


@pytest.hookimpl(tryfirst=True)  # before workers are started
def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        base = session.config._tmp_path_factory.getbasetemp()
        folders = [Path(os.environ["TMPDIR"]), base]
        session.config.stash[LEFT_BEHIND] = LeftBehind(folders, RUNNING)
        plugins = session.config.pluginmanager
        plugins.register(FailureNames(plugins.getplugin("terminalreporter")))


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and items that stay."""
    gc.enable()
    gc.freeze()


def pytest_runtest_logstart(nodeid: str) -> None:
    RUNNING.add(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    RUNNING.discard(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Fail the session if it left anything on the machine."""
    yield  # shared servers and workers have ended
    end_zygote()
    if left_behind := session.config.stash.get(LEFT_BEHIND, None):
        if left := left_behind.end():
            session.config.stash[LEFT] = left
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        for name in ("TMPDIR", "HF_HOME"):
            shutil.rmtree(os.environ[name], ignore_errors=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left := config.stash.get(LEFT, None):
        terminalreporter.section("left behind", red=True)
        for line in left:
            terminalreporter.line(line)
    for line in not_run(config, terminalreporter):
        terminalreporter.section("not run", red=True)
        terminalreporter.line(line)
    reports = [each for key in ("passed", "failed") for each in terminalreporter.getreports(key)]
    if lines := [*round_lines(reports)]:
        terminalreporter.section("rounds")
        for line in lines:
            terminalreporter.line(line)


def round_lines(reports: list[pytest.TestReport]) -> Iterator[str]:
    """Yield median and maximum of the times of each test with several rounds."""
    for report in reports:
        rounds = [times for name, times in report.user_properties if name == ROUND]
        if len(rounds) > 1:
            shown = (
                f"{key} {median(values):.2f} (max {max(values):.2f})"
                for key in rounds[0]
                if (values := [each[key] for each in rounds])
            )
            name = report.nodeid.rpartition("[")[2].rstrip("]")
            yield f"{name}, {len(rounds)} rounds: {', '.join(shown)}"


@pytest.fixture
def report_round(
    record_property: Callable[[str, object], None],
) -> Callable[[dict[str, float]], None]:
    """Report the times of one round of this test, by name."""
    return partial(record_property, ROUND)


def groups_file() -> Path:
    return Path(os.environ["TMPDIR"]) / "groups.json"


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark the server tests, run long groups and them first, and group all tests for the workers.

    Tests with a shared server are one group, each other server test is a separate one, and the
    remaining tests are grouped by file. A test of `--rounds` has the limit of one round for each.
    """
    groups = {}
    items[:] = [item for item in items if _has_engine(item) and _is_quick_enough(item)]
    for item in items:
        folder, fixtures = item.path.parent.relative_to(TESTS), set(item.fixturenames)
        if "report_round" in fixtures:
            rounds, limit_s = item.config.getoption("--rounds"), item.config.getini("timeout")
            item.add_marker(pytest.mark.timeout(float(limit_s) * max(1, rounds)))
        is_light = fixtures & LIGHT_SERVER_FIXTURES
        if folder.as_posix() in SERVER_FOLDERS or fixtures & SERVER_FIXTURES or is_light:
            item.add_marker("server")
        shared = next((name for name in SHARED_FIXTURES if name in fixtures), None)
        if shared is not None:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            kind = parameters.get(shared, "")
            parts = (folder.parts[0], shared, kind if isinstance(kind, str) else "")
            groups[item.nodeid] = "/".join(filter(None, parts))
        elif item.get_closest_marker("server") and not is_light:
            groups[item.nodeid] = item.nodeid
        else:
            groups[item.nodeid] = str(item.path)
    items.sort(
        key=lambda item: (
            groups[item.nodeid] not in LONG_GROUPS,
            item.get_closest_marker("server") is None,
            item.path,
        )
    )
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        groups_file().write_text(json.dumps(groups))


def _is_quick_enough(item: pytest.Function) -> bool:
    """Return False for a thorough test, without `--engines all`."""
    runs_all = item.config.getoption("--engines") == "all"
    return runs_all or item.get_closest_marker("thorough") is None


def _has_engine(item: pytest.Function) -> bool:
    """Return False for a kind of the shared server that the mark `engines` leaves out.

    Our own HTTP server has the kind `cpu` behind it.
    """
    marker = item.get_closest_marker("engines")
    if marker is None:
        return True
    kind = item.callspec.params["server"]
    if kind == "own":
        return "cpu" in marker.args and marker.kwargs.get("own", True)
    return kind in marker.args


@lru_cache
def groups() -> dict[str, str]:
    """Return the group of each test, which a worker has written."""
    read: dict[str, str] = json.loads(groups_file().read_text())
    groups_file().unlink()
    return read


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduler:
    return Scheduler(config, log, lambda nodeid: groups()[nodeid])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two workers more than cores, because tests wait for servers; without them, one."""
    more = 1 if config.option.markexpr == "not server" else 2
    return min(len(os.sched_getaffinity(0)) + more, MOST_WORKERS)
