"""Comparison of an engine with the settings, the GPUs and the versions of this machine."""
