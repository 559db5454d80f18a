"""HTTP endpoints, and in-process `predict`."""
