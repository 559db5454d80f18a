"""The converter from a Llama checkpoint to GGUF, for the CPU."""
