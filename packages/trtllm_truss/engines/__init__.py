"""Description of an engine and of the machines that can run it, before anything is started.

`inspection` describes a folder, or a listing with its ``config.json``. For TensorRT-LLM it uses
`config_schemas` (both schemas, all eras), `tensorrt_llm_config` (rules of the runtime) and
`rank_files`. `capacity` computes the tokens and sequences of the KV cache. `manifest` reads and
writes the record of a build, `file_checks` verifies files by it. `compatibility` compares an engine
with the settings and the host. `versions` lists TensorRT-LLM versions and images, and pins one.
"""
