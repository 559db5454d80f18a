"""The commands that people run on their own machine; the server they use is trtllm_truss.

Not a part of a Truss: an image gets packages/ alone.
"""
