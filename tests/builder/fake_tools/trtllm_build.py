"""Fake `trtllm-build`: record the call, wait while a file `wait` exists, write an engine."""

import json
import os
import sys
import time
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
notes = Path(os.environ["TENSORRT_LLM_FAKE_NOTES"])
with (notes / "calls").open("a") as calls:
    calls.write(f"build {json.dumps(sys.argv[1:])}\n")
converted = json.loads((Path(options["--checkpoint_dir"]) / "config.json").read_text())
ranks = converted["mapping"]["tp_size"]
engine = Path(options["--output_dir"])
(engine / "rank0.engine").write_bytes(b"half")
(notes / "pid.new").write_text(str(os.getpid()))
(notes / "pid.new").rename(notes / "pid")  # never seen empty
while (notes / "wait").exists():
    time.sleep(0.02)
config = {
    "version": "1.0.0",
    "pretrained_config": {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mapping": {"world_size": ranks, "tp_size": ranks, "pp_size": 1},
    },
    "build_config": {
        "max_input_len": 1024,
        "max_seq_len": 8192,
        "max_batch_size": int(options.get("--max_batch_size", 2048)),
        "max_beam_width": 1,
        "max_num_tokens": 8192,
        "kv_cache_type": "PAGED",
        "plugin_config": {
            "gpt_attention_plugin": "auto",
            "remove_input_padding": True,
            "context_fmha": True,
            "use_paged_context_fmha": True,
            "tokens_per_block": 32,
        },
    },
}
for rank in range(ranks):
    (engine / f"rank{rank}.engine").write_bytes(b"engine %d" % rank * 100)
(engine / "config.json").write_text(json.dumps(config))
