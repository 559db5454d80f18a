"""Every import is a direct requirement: transitive ones may vanish with their parents."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.packaging.test_requirements import SERVER
from tests.support.paths import ROOT

PACKAGE, WORKBENCH = ROOT / "packages/trtllm_truss", ROOT / "workbench/trtllm_workbench"
BACKENDS, BUILDER = ROOT / "packages/trtllm_backends", ROOT / "packages/trtllm_builder"
DYNAMO = ROOT / "packages/trtllm_dynamo"
OWN = {
    "trtllm_dynamo",
    "trtllm_truss",
    "trtllm_builder",
    "trtllm_backends",
    "trtllm_workbench",
    "tests",
    "tools",
    "benchmarks",
}
NAME = re.compile(r"[A-Za-z0-9._-]+")
DISTRIBUTIONS = {
    "dynamo": "ai-dynamo-runtime",
    "agents": "openai-agents",
    "botocore": "boto3",  # of the same release
    "cloudcoil": "cloudcoil-models-kubernetes",
    "google": "protobuf",
    "grpc": "grpcio",
    "langchain_openai": "langchain-openai",
    "opentelemetry": "opentelemetry-sdk",
    "openvino": "openvino-genai",  # of the same release
    "pydantic_ai": "pydantic-ai-slim",
    "pydantic_core": "pydantic",  # which allows one version
    "xdist": "pytest-xdist",
    "yaml": "pyyaml",
}
EXTRAS = {
    "artifacts/s3.py": "s3",
    "cli/serve.py": "serve",
    "cli/http_connection.py": "serve",
    "cli/truss_verdict.py": "serve",  # asked where it is installed
}
"""Parts of the package that work with an extra only."""

BUILDER_EXTRAS = {"gguf_conversion.py": "build-cpu", "publishing.py": "s3"}
WORKBENCH_EXTRAS = {"": "serve", "cli/chat_terminal.py": "chat"}

GIVEN = {
    "guides/compiler_worker.py": {"numpy", "transformers", "xgrammar"},  # TensorRT-LLM
    "text/tokenizer_files.py": {"transformers"},  # TensorRT-LLM; an error without
    "triton/client/logits.py": {"numpy"},  # TensorRT-LLM
    "observability/tracing.py": {
        "opentelemetry-sdk",
        "requests",
        "urllib3",
    },  # Truss's server; an error without
}
"""Distributions that the process of a part provides."""

TRITON_PYTHON = {"triton-python-backend-utils", "numpy"}

STAND_INS = {"tensorrt-llm", "torch", "triton-python-backend-utils"}
TRUSS_SERVER = {"model-wrapper", "truss-server"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(lines: Iterable[str]) -> dict[str, str]:
    """Return the specifier of each name."""
    found = {}
    for line in lines:
        text = line.partition("#")[0].strip()
        name = NAME.match(text)
        if name and not text.startswith("-"):
            found[normal(name[0])] = text[name.end() :].split("]")[-1]
    return found


def of_file(name: str) -> dict[str, str]:
    return requirements((ROOT / name).read_text(encoding="utf-8").splitlines())


# What `make demo` installs, and `make test` too.
SERVE = of_file("requirements.txt") | of_file("requirements/serve.in")


def of_extra(name: str) -> dict[str, str]:
    """Return the requirements of one extra, without tomllib, which Python 3.10 does not have."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf"^{name} = (\[.*?\]$)", text, re.MULTILINE | re.DOTALL)
    assert found
    listed = re.sub(r"^ *#.*$", "", found[1], flags=re.MULTILINE)
    return requirements(ast.literal_eval(listed))


def imported(file: Path) -> Iterator[str]:
    """Yield the distributions that a module imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        for top in {module.partition(".")[0] for module in modules}:
            if top not in sys.stdlib_module_names and top not in OWN:
                yield DISTRIBUTIONS.get(top, normal(top))


def undeclared(folder: Path, declared: Iterable[str]) -> set[tuple[str, str]]:
    known = set(declared)
    return {
        (str(file.relative_to(ROOT)), name)
        for file in ([folder] if folder.is_file() else sorted(folder.rglob("*.py")))
        for name in imported(file)
        if name not in known
    }


def test_the_package_imports_its_requirements() -> None:
    core = of_file("requirements.txt")
    wrong = set()
    parts = [(PACKAGE / part, set(of_extra(extra))) for part, extra in EXTRAS.items()]
    parts += [(WORKBENCH / part, set(of_extra(extra))) for part, extra in WORKBENCH_EXTRAS.items()]
    parts += [(PACKAGE / part, names) for part, names in GIVEN.items()]
    parts += [(BACKENDS, TRITON_PYTHON), (BACKENDS / "openvino_genai", set(of_extra("serve")))]
    parts += [(BUILDER / part, set(of_extra(extra))) for part, extra in BUILDER_EXTRAS.items()]
    parts += [(DYNAMO, set(of_extra("dynamo")))]
    folders = (PACKAGE, BACKENDS, BUILDER, DYNAMO, WORKBENCH)
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        more = (names for part, names in parts if file.is_relative_to(part))
        wrong |= undeclared(file, set(core).union(*more))
    assert not wrong
    assert not undeclared(ROOT / "model", core)


@pytest.mark.parametrize("folder", ["tests", "tools", "benchmarks"])
def test_tests_and_tools_import_their_requirements(folder: str) -> None:
    known = {*SERVE, *of_file("requirements/dev.in")}
    known |= {*of_file("requirements/wheels.in"), *of_file("requirements/reference.in")}
    if folder == "benchmarks":
        known |= {*of_file("requirements/bench.in"), *of_file("requirements/peers.in")}
        known.add("tensorrt-llm")
    if folder == "tests":
        known |= (
            STAND_INS | TRUSS_SERVER | {"batch", "known-model", "sampling"}
        )  # files of the stand-in
        known.add("safetensors")  # comes with transformers
        known.add("peft")  # of the script that wrote the adapters
    wrong = undeclared(ROOT / folder, known)
    clients = of_file("requirements/clients.in")
    assert not {
        (file, name)
        for file, name in wrong
        if not (file.startswith("tests/clients/") and name in clients)
    }


@pytest.mark.parametrize("extra", ["s3", "build-cpu", "chat", "serve"])
def test_the_environment_of_the_tests_has_every_extra(extra: str) -> None:
    listed = SERVE | of_file("requirements/dev.in")
    for name, versions in of_extra(extra).items():
        assert name in listed
        assert extra not in ("serve", "chat") or SERVE[name] == versions, name


def test_the_extra_serve_has_the_requirements_of_trusss_server() -> None:
    """Leave out a backport for Python 3.6, a compiler, what truss brings, and NumPy's bound."""
    needed = requirements((SERVER / "requirements.txt").read_text().splitlines())
    given = {**of_file("requirements.txt"), **of_extra("serve")}
    left_out = {"aiocontextvars", "cython", "truss-transfer", "numpy"}
    assert left_out < needed.keys()
    assert {name: needed[name] for name in needed.keys() - left_out}.items() <= given.items()
