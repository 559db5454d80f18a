"""The commands that need the server's package alone, in a container too."""
