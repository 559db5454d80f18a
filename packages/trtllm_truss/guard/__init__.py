"""Limits of a request in Truss's server before its endpoint is called."""
