"""The console: a page with the model and its vital signs, on a port of its own.

`app` answers the browser and calls the served API, `pulse` collects the vital signs from the log
and the metrics. `page/` is static.
"""
