"""Everything that knows Triton: its model repository, its process and its wire format.

The room knows token ids and nothing of text. Its modules, in the order a start-up uses them:

* :mod:`schema` and :mod:`contract`: the ``tensorrt_llm`` model as data.
* :mod:`parameters` and :mod:`repository`: settings into the model repository that Triton loads,
  :mod:`native_models`: the text models that it may also have.
* :mod:`installation`: where Triton is on this machine and what it needs to run.
* :mod:`ports`, :mod:`mpi` and :mod:`command`: argument vector and environment, one rank per GPU.
* :mod:`keeper`, :mod:`output` and :mod:`process`: a supervised child that never outlives us.
* :mod:`readiness`, :mod:`causes` and :mod:`diagnosis`: is it ready, and if it died, why.
* :mod:`request`, :mod:`tensors`, :mod:`responses`, :mod:`client` and :mod:`failures`: one request's
  token stream.
"""
