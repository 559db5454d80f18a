"""The lifecycle of the engine.

- `service`: the entry; `startup_log`: the log of a start;
- `preparation`: settings and repositories → an engine that fits, and Triton's model repository;
- `repositories`: the files; `mounted_files` checks them, `read_ahead` brings them into memory;
- `kernel_cache`: where libraries keep what they compile;
- `supervisor`: starts Triton and restarts it; `trials`: requests of a start; `rank`: other ranks;
- `memory`: returns memory to the system after peaks.
"""
