"""Generators of the pages in docs/ that follow from the code."""
