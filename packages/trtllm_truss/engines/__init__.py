"""Descriptions of engines and of the machines that can run them, before anything is started.

- `kinds`: the kinds of engines, their recognition; `engine`, `gpu_engine`: what all have in common;
  `compiled/`, `checkpoint/`, `cpu/`: one each;
- `deployment`: an engine with its settings and release;
- `capacity`: tokens and sequences of the KV cache; `scheduling`: limits of the executor;
- `model_config`, `quantization`, `without_code`, `adapters`: a checkpoint of Hugging Face;
- `manifest`: the record of a build;
- `host`, `gpus`, `images`: GPUs, releases of TensorRT-LLM, images;
- `diagnostics`: findings of a check.
"""
