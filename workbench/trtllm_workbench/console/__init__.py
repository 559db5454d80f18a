"""The console: a page with the model and its vital signs, on a port of its own.

`app` answers the browser, `upstream` calls the served API, `pulse` collects the vital signs from
the log and `scrape` from the metrics. `page/` is static.
"""
