"""Checkpoints as engines of TensorRT-LLM's LLM API.

`arguments` derives the engine's arguments from the settings; `weights` lists the architectures that
each release loads.
"""
