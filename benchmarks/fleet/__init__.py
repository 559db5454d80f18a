"""A fleet of replicas in virtual time: arrivals, router, admission, engine, autoscaler.

Admission is the server's own class (`trtllm_truss.inference.admission`), with the simulation's
clock. Everything else is a model, described in docs/scale.md.
"""
