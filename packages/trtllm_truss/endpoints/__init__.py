"""HTTP: one request from its body to its response, and `predict` in this process."""
