"""The measured servers: the Truss's own, and Triton alone for comparison."""
