"""A worker of NVIDIA Dynamo.

Dynamo's frontend speaks HTTP, tokenizes, applies chat templates and stop words, parses tool calls
and routes. The worker takes and gives token ids. Admission, checks, guides, deadlines and
supervision are those of `Service`, so a worker refuses what every other route refuses.
"""
