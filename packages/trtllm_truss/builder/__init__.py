"""Engines from checkpoints: planned, built, kept, published.

`plan` is a pure function: settings, a checkpoint's ``config.json`` and a version become commands,
put together by `planning` once `checks` found nothing to refuse. `jobs` joins a plan with a real
checkpoint, `run` runs it step by step, `publishing` uploads the result for later starts. `gguf` is
the converter for the CPU, a process of its own.
"""
