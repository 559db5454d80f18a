"""The differences between TensorRT-LLM's releases: one file of data per table, and its reader.

A new release changes these files, not code. `tables` says how a file is written; a section's rows
are typed by the module that reads it, which `tests/releases/test_tables.py` lists.
"""
