"""The imports of a plain start: what only some configurations need comes with them."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.paths import ROOT

_PROGRAM = """
import json, sys
sys.path[:0] = ["model"]
import model
first = [*sys.modules]
import trtllm_truss.inference.generation, trtllm_truss.endpoints.routes
import trtllm_truss.text.tokenizer, trtllm_truss.triton.client.client
print(json.dumps([first, [*sys.modules]]))
"""
NEVER = {
    *("numpy", "grpc", "tritonclient.grpc", "transformers", "huggingface_hub", "boto3", "httpx"),
    *("trtllm_builder", "trtllm_truss.cli", "xgrammar", "openvino"),
    *("opentelemetry", "trtllm_truss.observability.tracing"),
}
ONLY_BESIDE_TRITON = {
    *(
        "h2",
        "jinja2",
        "tokenizers",
        "trtllm_truss.protocols",
        "trtllm_truss.endpoints.endpoint",
        "trtllm_truss.tool_calls",
    ),
    *("trtllm_truss.inference.generation", "trtllm_truss.text.tokenizer"),
}


def test_a_start_imports_little_before_triton_and_nothing_in_vain() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=ROOT, check=True, capture_output=True, timeout=240
    ).stdout
    first, all_of_it = map(set, json.loads(printed))
    assert {"trtllm_truss.serving.service", "trtllm_truss.triton.server.process"} <= first
    assert not first & ONLY_BESIDE_TRITON
    assert all_of_it >= ONLY_BESIDE_TRITON
    assert not all_of_it & NEVER


def test_help_imports_no_command_and_no_library() -> None:
    """A shell that completes words runs it often."""
    program = "import atexit, sys; from trtllm_workbench.cli.main import main\n"
    program += "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\nmain(['--help'])"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, timeout=240
    )
    imported = set(ran.stderr.decode().split())
    assert "trtllm_truss.cli.main" in imported
    assert not imported & {"asyncio", "pydantic", "yaml", "trtllm_truss.settings"}


def test_the_cpu_backend_imports_no_settings() -> None:
    """It starts after the server has imported its part, so its imports delay "ready"."""
    program = "import sys, trtllm_backends.openvino_genai.scheduler\n"
    program += "import trtllm_backends.openvino_genai.scoring\nprint(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, timeout=240
    )
    imported = set(ran.stdout.decode().split())
    assert "trtllm_backends.openvino_genai.engine" in imported
    assert not imported & {"asyncio", "pydantic", "yaml", "trtllm_truss.settings"}
