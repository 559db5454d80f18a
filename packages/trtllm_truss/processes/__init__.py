"""Child processes that never outlive this one.

`child` starts a command behind `process_guard`, a separate program that ends it when this process
dies, reads its output, stops it, and removes what earlier ones left.
"""
