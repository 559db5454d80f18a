"""Settings of the operator: config.yaml, secrets and environment.

`model` declares every key with its default, range and description; `loading` is the only reader of
secrets and environment.
"""
