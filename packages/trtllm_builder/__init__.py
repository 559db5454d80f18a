"""Build engines from checkpoints: plan, build, cache and publish.

`plan` is a pure function: it turns settings, a checkpoint's ``config.json`` and a version into
validated commands, which `commands` assembles. `jobs` combines a plan with a checkpoint, `run` runs
it step by step, `publishing` uploads the result for later starts. `gguf_conversion` is the
converter for the CPU and runs in a separate process.
"""
