"""A fleet of replicas in virtual time: arrivals, router, admission, engine, autoscaler.

Admission is the class of the server itself (`trtllm_truss.inference.admission`), with the clock of
the simulation. Everything else is a model, described in docs/scale.md.
"""
