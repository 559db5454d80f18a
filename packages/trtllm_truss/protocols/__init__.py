"""Parse JSON bodies into requests and encode answers; no network, no engine.

Each protocol is a package with an `adapter` that implements `base.ApiAdapter`.
"""
