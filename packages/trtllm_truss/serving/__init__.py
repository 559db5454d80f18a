"""The lifecycle of the engine.

- `service`: the entry; `startup_log`, `log_lines`: what it says;
- `preparation`: settings and repositories → an engine that fits, and Triton's model repository;
- `repositories`: the files; `mounted_files`, `read_ahead`: their check and their way into memory;
- `kernel_cache`: where libraries keep what they compile;
- `supervisor`: starts Triton and restarts it; `trials`: requests of a start; `rank`: other ranks;
- `memory`: returns memory to the system after peaks.
"""
