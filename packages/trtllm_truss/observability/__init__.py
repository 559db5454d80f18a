"""Metrics, spans, log lines and the status of the service.

- `metrics`: counters and histograms of calls, and a request's log line;
- `exposition`: the metrics page, which includes Triton's metrics;
- `tracing`: OpenTelemetry spans of calls, imported only if enabled;
- `status`: the state of the service, in memory and in a file;
- `log_lines`: the format of the server's log.
"""
