"""Checkpoints as engines of TensorRT-LLM's LLM API.

`arguments` completes a checkpoint with the settings; `weights` lists what each release can load.
"""
