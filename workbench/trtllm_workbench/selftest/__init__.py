"""`trtllm-truss selftest`: check this project's promises on the machine as it is.

A step creates or finds a model, serves it with the real `trtllm-truss serve`, and checks one
promise after the other over HTTP and over Triton's gRPC. Each check has one result: passed, failed,
or skipped with the reason.
"""
