"""Assumptions of the code about TensorRT-LLM, Triton and MPI: a table, and a check for each row.

docs/engines.md and docs/llm-api.md show the table; `selftest` runs the checks.
"""
