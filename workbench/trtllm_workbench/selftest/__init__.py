"""`trtllm-truss selftest`: the promises of this project, checked on the machine as it is.

A step makes or finds a model, serves it with the real `trtllm-truss serve`, and checks one promise
after the other over HTTP and over Triton's gRPC. Each check has one result: held, fell short, or
could not run with the reason.
"""
