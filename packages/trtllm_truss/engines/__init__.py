"""Description of an engine and of the machines that can run it, before anything is started.

`kinds` describes a folder, or a listing with its ``config.json``, and compares an engine with the
settings and the host. `capacity` computes the tokens and sequences of the KV cache. `manifest`
reads and writes the record of a build. `host` has GPUs, TensorRT-LLM versions and images, and pins
one.
"""
