"""What is measured: the Truss's own server, and Triton alone for comparison."""
