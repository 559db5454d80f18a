"""The lifecycle of the engine.

- `service`: the entry; `startup_log`: the log of a start;
- `preparation`: from settings and repositories to a compatible engine and Triton's model
  repository;
- `repositories`: the files; `mounted_files` checks them, `read_ahead` loads them into memory;
- `kernel_cache`: where libraries keep compiled kernels;
- `supervisor`: starts Triton and restarts it; `trials`: first requests of a start; `rank`: other
  ranks;
- `memory`: returns memory to the system after peaks.
"""
