"""Clients that check every answer while the server's processes are killed and stopped."""
