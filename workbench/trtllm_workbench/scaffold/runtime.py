"""The Python packages of a Truss beyond those of the template."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_truss.artifacts.s3 import S3

S3_REQUIREMENT = "boto3>=1.36"


def extra_requirements(repositories: Sequence[str], of_engine: Sequence[str]) -> list[str]:
    """Return the lines to add to requirements.txt."""
    uses_s3 = any(repository.startswith(S3) for repository in repositories)
    return [*of_engine, *([S3_REQUIREMENT] if uses_s3 else [])]
