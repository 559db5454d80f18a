"""Counters, histograms and the log line of a request, and their Prometheus collector."""
