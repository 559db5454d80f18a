"""What is written about a published engine: the model card, and the settings that serve it."""

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
trtllm-truss from {checkpoint}. It is no checkpoint: it runs only where this table says.

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
    """The text of ``README.md``.

    Args:
        manifest: of the engine.
        repository: where it goes.
    """
    gpu = manifest.gpu
    origin = manifest.checkpoint
    checkpoint = "an unnamed checkpoint" if origin is None else f"`{origin.repository}`"
    if origin is not None and origin.revision:
        checkpoint += f" at `{origin.revision}`"
    facts = {
        "TensorRT-LLM": manifest.tensorrt_llm_version or "none: it runs on the CPU",
        "GPU": f"{gpu.name}, compute capability {gpu.dotted_capability}" if gpu else None,
        "Ranks (GPUs)": manifest.world_size if manifest.tensorrt_llm_version else None,
        "Build key": manifest.build_key,
    }
    header: dict[str, Any] = {"tags": ["trtllm-truss"]}
    if origin is not None and origin.revision:  # only repositories on the Hub have any
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
    """The part of ``config.yaml`` that serves an engine, to be pasted."""
    options: Mapping[str, Any] = manifest.build_options
    metadata = {
        "tensor_parallelism": options.get("tensor_parallelism", 1),
        "pipeline_parallelism": options.get("pipeline_parallelism", 1),
        "engine_repository": repository,
    }
    if revision is not None:
        metadata["engine_revision"] = revision
    return yaml.safe_dump({"model_metadata": metadata}, sort_keys=False)
