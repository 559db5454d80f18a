"""The commands; the top layer, which no other layer imports."""
