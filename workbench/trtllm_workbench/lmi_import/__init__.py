"""Conversion of an LMI container's configuration.

`reading` collects options from serving.properties and environment variables, `options` has the one
rule of each (an `option`), `conversion` applies it.
"""
