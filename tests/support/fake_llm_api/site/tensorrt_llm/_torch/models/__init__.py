"""Models; importing them registers their classes."""
