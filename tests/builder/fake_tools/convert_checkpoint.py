"""Fake conversion script of TensorRT-LLM: record the call, write a small file."""

import json
import os
import sys
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
notes = Path(os.environ["TENSORRT_LLM_FAKE_NOTES"])
with (notes / "calls").open("a") as calls:
    calls.write(f"convert {json.dumps(sys.argv[1:])}\n")
(notes / "environment").write_text(json.dumps(dict(os.environ)))
source = json.loads((Path(options["--model_dir"]) / "config.json").read_text())
if (notes / "fail").exists():
    sys.stderr.write((notes / "fail").read_text() + "\n")
    sys.exit(1)
(Path(options["--output_dir"]) / "config.json").write_text(
    json.dumps(
        {"mapping": {"tp_size": int(options["--tp_size"])}, "rope_theta": source.get("rope_theta")}
    )
)
