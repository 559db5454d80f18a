"""The operator's settings: config.yaml, secrets and environment.

`model` declares every key with its default, range and description; only `loading` reads secrets and
environment.
"""
