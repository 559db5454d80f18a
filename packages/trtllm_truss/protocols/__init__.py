"""JSON bodies into requests, generated text into bytes; no network, no engine.

Each protocol is a package with an `adapter` that implements `base.ApiAdapter`.
"""
