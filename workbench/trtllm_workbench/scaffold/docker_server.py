"""The section `docker_server` of config.yaml, for this project's own server."""

from __future__ import annotations

from typing import Any

SLIM = "BT_USE_DOCKER_SERVER_SLIM"
"""Truss's variable for an image of `docker_server` without Truss's proxy."""

OWN_COMMAND = "-m trtllm_truss serve"


def own_server_section(executable: str | None) -> dict[str, Any]:
    """Return `docker_server` of config.yaml for this project's server.

    Args:
        executable: `base_image.python_executable_path`, for which Truss installs the requirements.
            Images from 26.03 on have another `python3` first on PATH, TensorRT-LLM's
            (tensorrtllm_backend r26.07, dockerfile/Dockerfile.triton.trt_llm_backend). None for
            Truss's own image, which has one Python.
    """
    python = executable or "python3"
    command = f"env PYTHONPATH=/packages {python} {OWN_COMMAND} --truss /app --host 0.0.0.0"
    return {
        "start_command": command,
        "server_port": 8081,  # Baseten's proxy uses 8080
        "predict_endpoint": "/v1/models/model:predict",
        "readiness_endpoint": "/v1/models/model",
        "liveness_endpoint": "/",
    }
