"""Metrics: `counters` over all requests; the `collector` shows them and feeds them per request."""
