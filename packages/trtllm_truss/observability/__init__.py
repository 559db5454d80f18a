"""Metrics, spans, log lines and the status of the service.

- `metrics`: counters and histograms of calls, and a request's log line;
- `exposition`: the page of metrics, with Triton's beside ours;
- `tracing`: OpenTelemetry spans of calls, imported only where they are on;
- `status`: the state of the service, in memory and in a file;
- `log_lines`: the format of the server's log.
"""
