"""What an engine is and where it fits, before anything is started.

`inspection` turns a folder, or a mere listing with its ``config.json``, into an `Engine`; for
TensorRT-LLM that is `config_schemas` (both schemas, all eras), `tensorrt_llm_config` (what the
runtime makes of them) and `rank_files`. `capacity` computes how many tokens and sequences its KV
cache holds. `manifest` and `contents` read, write and verify the record of a build. `compatibility`
compares an engine with the settings and with this machine. `versions` is the table of TensorRT-LLM
versions and images, and the one place that pins an image.
"""
