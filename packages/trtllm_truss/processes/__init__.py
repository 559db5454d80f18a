"""Child processes that never outlive this one.

`spawning` starts a command behind `process_guard`, a separate program that ends it when this
process dies. `leftovers` removes what earlier processes left.
"""
