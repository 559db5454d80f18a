"""Validation of a build before any download."""
