"""Run a planned build behind the process guard; `ensure_engine` is the entry point of serving."""
