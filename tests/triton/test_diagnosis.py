from __future__ import annotations

import pytest

from trtllm_truss.triton.diagnosis import describe_exit, is_port_conflict, telling_line


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([], None),
        (["", "  "], None),
        (["only words", ""], "only words"),
        (["[TensorRT-LLM][ERROR] no GPU", "bye"], "[TensorRT-LLM][ERROR] no GPU"),
        (
            [
                'E1121 08:45:15.576576 7594 server.cc:241] "CudaDriverHelper has not been"',
                'E1121 08:45:15.576576 7594 model_lifecycle.cc:654] "failed: no engine\\n\\nAt"',
                'W1121 08:45:15.576576 7594 metrics.cc:798] "DCGM unable to start: error"',
                'I1121 08:45:15.576576 7594 server.cc:345] "Timeout 0: Found 0 live models"',
                "error: creating server: Internal - failed to load all models",
            ],
            "failed: no engine",
        ),
    ],
)
def test_telling_line(lines, line):
    assert telling_line(lines) == line


def test_port_conflict():
    assert is_port_conflict(["error: failed to start GRPC service: Unavailable - Socket in use"])
    assert not is_port_conflict(["ready"])


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1"),
        (137, "was killed by SIGKILL"),
        (-9, "was lost: its keeper was killed by SIGKILL"),
        (255, "exited with code 255"),
    ],
)
def test_describe_exit(returncode, words):
    assert describe_exit(returncode) == words
