"""What a run has: kinds of engines and servers, thorough tests, and the plugins of the suite."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.fakes.tensorrt_llm import VERSIONS as LLM_API_VERSIONS
from tests.support.paths import ELSEWHERE
from tests.support.shared_tls import share_tls_contexts

pytest_plugins = [f"tests.support.{name}" for name in ("groups", "rounds", "session_folders")]
collect_ignore = [*ELSEWHERE]
SERVER_MODULES = "tests.end_to_end"
OWN_SERVER_MODULE = "test_guard"
"""Module whose tests of the shared server run with our own HTTP server too, without
`--servers all`."""


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
        has_own = metafunc.config.getoption("--servers") == "all"
        has_own = has_own or metafunc.module.__name__.endswith(OWN_SERVER_MODULE)
        versions = LLM_API_VERSIONS if runs_all else ()
        kinds = ("cpu", *(("own",) if has_own else ()), *versions)
        metafunc.parametrize("server", kinds, indirect=True, scope="session")


def pytest_configure(config: pytest.Config) -> None:
    share_tls_contexts()
    load_profile(config.getoption("--engines") == "all")
    gc.disable()  # the collection makes objects and no garbage
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # tests expect no GPU, or lay out their own


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


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and items that stay."""
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Leave out thorough tests, and kinds of servers that a test has no use for."""
    items[:] = [item for item in items if _has_engine(item) and _is_quick_enough(item)]


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
