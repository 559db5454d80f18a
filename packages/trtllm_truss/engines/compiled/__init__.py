"""Engines that `trtllm-build` compiled for one GPU and one TensorRT-LLM release."""
