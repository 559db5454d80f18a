"""The console: a page with the model and its metrics, on a separate port.

`app` serves the browser and calls the served API; `pulse` collects figures from log and metrics.
`page/` is static.
"""
