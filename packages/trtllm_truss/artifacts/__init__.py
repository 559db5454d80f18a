"""Repositories become folders on this machine. `fetch` is the one way in."""
