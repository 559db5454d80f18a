"""Child processes that never outlive this one.

`spawning` starts a command behind `process_guard`, a program of its own that ends it when this
process dies. `leftovers` removes what earlier processes left; `shared_memory` names Triton's
segments.
"""
