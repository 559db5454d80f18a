"""One HTTP request from its body to its response: the glue between Truss's server and the rooms."""
