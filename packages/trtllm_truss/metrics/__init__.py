"""Metrics: `counters` over all requests, one `request` with its log line, the `collector`."""
