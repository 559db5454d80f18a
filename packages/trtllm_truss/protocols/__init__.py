"""Parse JSON bodies into requests and encode answers; no network, no engine.

Each protocol has an adapter, a class that implements `base.ApiAdapter`.
"""
