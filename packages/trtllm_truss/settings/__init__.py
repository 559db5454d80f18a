"""What the operator asked for: config.yaml, secrets and environment become one `Settings`.

`model` holds every key with its default, range and sentence; `loading` is the only reader of
files, secrets and environment.
"""
