"""The commands of a build and their estimated sizes, as pure functions."""
