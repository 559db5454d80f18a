"""The commands that need only the server's package, also in a container."""
