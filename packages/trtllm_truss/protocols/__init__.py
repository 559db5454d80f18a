"""Parse JSON bodies into requests and encode responses, without network or engine.

Each protocol has an adapter, a class that implements `base.ApiAdapter`.
"""
