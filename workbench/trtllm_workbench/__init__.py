"""The commands that people run on their own machine; they use the server in trtllm_truss.

Not part of a Truss: an image contains packages/ only.
"""
