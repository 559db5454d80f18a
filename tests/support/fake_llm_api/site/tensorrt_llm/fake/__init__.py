"""Implementation of the fake."""
