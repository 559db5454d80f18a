"""Models that OpenVINO GenAI runs on the CPU."""

KV_BLOCK_TOKENS = 32
"""Tokens in one block of the KV cache of OpenVINO's CPU plugin."""

GUIDE_CHECK = "trtllm_backends.openvino_genai.grammar_compiler_worker"
"""The program that compiles guides under limits; its argument is the engine's folder."""
