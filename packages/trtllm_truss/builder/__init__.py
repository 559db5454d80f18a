"""Engines from checkpoints: planned, built, kept, published.

`plan` is the heart, a pure function: settings, a checkpoint's ``config.json`` (`checkpoint`) and a
version become commands, by the tables in `families` and `flags`; `refusals` says what cannot be
built, `estimates` what it will take. `jobs` joins this with a real checkpoint, `building` runs it
step by step, `publishing` brings the result to where later starts find it. `ensuring` is the whole
as one call for serving. `gguf_conversion` is the converter for the CPU, a process of its own.
"""
