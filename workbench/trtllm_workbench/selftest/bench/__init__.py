"""One served model, how to call it, and the results of its checks."""
