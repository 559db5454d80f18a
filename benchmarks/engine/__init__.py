"""The engine that costs nothing: a Triton backend and the engine folders that it loads."""
