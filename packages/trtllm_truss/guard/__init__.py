"""What holds for a request in Truss's server before an endpoint is called."""
