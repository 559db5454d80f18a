"""Find TensorRT-LLM, Triton, MPI, GPUs and CUDA on this machine, and the limits of its processes.

Nothing here imports TensorRT-LLM or loads CUDA into this process. Functions take ``root``, a folder
used in place of ``/``.
"""
