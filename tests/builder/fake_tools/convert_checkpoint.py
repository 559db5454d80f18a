"""Fake conversion script of TensorRT-LLM: record the call, write a small file."""

import contextlib
import json
import os
import pickle
import sys
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
notes = Path(os.environ["TENSORRT_LLM_FAKE_NOTES"])
with (notes / "calls").open("a") as calls:
    calls.write(f"convert {json.dumps(sys.argv[1:])}\n")
(notes / "environment").write_text(json.dumps(dict(os.environ)))
# NVIDIA's scripts trust the checkpoint's code, and load pickles:
# `trust_remote_code=True` in examples/models/core/llama/convert_checkpoint.py.
folder = Path(options["--model_dir"])
for name in ("AutoConfig", "AutoTokenizer"):
    file = folder / f"{'tokenizer_' * (name == 'AutoTokenizer')}config.json"
    if file.exists() and "auto_map" in json.loads(file.read_text()):
        import transformers

        with contextlib.suppress(ValueError, OSError):
            getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
for file in folder.glob("*.bin"):
    pickle.loads(file.read_bytes())
source = json.loads((Path(options["--model_dir"]) / "config.json").read_text())
if (notes / "fail").exists():
    sys.stderr.write((notes / "fail").read_text() + "\n")
    sys.exit(1)
(Path(options["--output_dir"]) / "config.json").write_text(
    json.dumps(
        {"mapping": {"tp_size": int(options["--tp_size"])}, "rope_theta": source.get("rope_theta")}
    )
)
