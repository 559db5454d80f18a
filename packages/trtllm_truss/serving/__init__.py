"""One request's life, and the life of what serves it."""
