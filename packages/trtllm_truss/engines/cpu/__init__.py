"""Models that OpenVINO GenAI runs on the CPU."""

KV_BLOCK_TOKENS = 32
"""Tokens in one block of the KV cache of OpenVINO's CPU plugin."""
