"""Generators of the pages in docs/ that derive from the code."""
