"""The model card of a published engine, and the settings that serve it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from trtllm_truss.engines.manifest import Manifest

CARD_FILE = "README.md"

_CARD = """\
---
{header}---

# {title}

An engine for [Triton Inference Server](https://github.com/triton-inference-server), built by
trtllm-truss from {checkpoint}. It is not a checkpoint: it runs only on what this table lists.

| | |
|---|---|
{rows}

Serve it with this block in a Truss's `config.yaml`:

```yaml
{settings}```

Build options:

```json
{options}
```
"""


def model_card(manifest: Manifest, repository: str) -> str:
    """Return the text of ``README.md`` for an engine in `repository`."""
    gpu = manifest.gpu
    origin = manifest.checkpoint
    checkpoint = "an unnamed checkpoint" if origin is None else f"`{origin.repository}`"
    if origin is not None and origin.revision:
        checkpoint += f" at `{origin.revision}`"
    facts = {
        "TensorRT-LLM": manifest.tensorrt_llm_version or "none: runs on the CPU",
        "GPU": f"{gpu.name}, compute capability {gpu.dotted_capability}" if gpu else None,
        "Ranks (GPUs)": manifest.world_size if manifest.tensorrt_llm_version else None,
        "Build key": manifest.build_key,
    }
    header: dict[str, Any] = {"tags": ["trtllm-truss"]}
    if origin is not None and origin.revision:  # only repositories on the Hub have one
        header["base_model"] = origin.repository
    return _CARD.format(
        header=yaml.safe_dump(header),
        title=repository.rstrip("/").rsplit("/", 1)[-1],
        checkpoint=checkpoint,
        rows="\n".join(f"| {name} | {value} |" for name, value in facts.items() if value),
        settings=settings_block(manifest, repository),
        options=json.dumps(dict(manifest.build_options), indent=2, ensure_ascii=False),
    )


def settings_block(manifest: Manifest, repository: str, revision: str | None = None) -> str:
    """Return the YAML that serves an engine, to paste into ``config.yaml``."""
    options: Mapping[str, Any] = manifest.build_options
    metadata = {
        "tensor_parallelism": options.get("tensor_parallelism", 1),
        "pipeline_parallelism": options.get("pipeline_parallelism", 1),
        "engine_repository": repository,
    }
    if revision is not None:
        metadata["engine_revision"] = revision
    return yaml.safe_dump({"model_metadata": metadata}, sort_keys=False)
