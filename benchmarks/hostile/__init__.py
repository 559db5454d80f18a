"""Bodies and clients that cost a server disproportionate time or memory, and their measurement."""
