"""Gives the fake's worker the command line of an MPI worker."""
