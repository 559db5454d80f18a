"""The PyTorch backend, of which only the registered classes exist here."""
