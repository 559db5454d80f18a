"""The commands of a build and what they will take, from data alone."""
