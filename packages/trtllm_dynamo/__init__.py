"""A worker of NVIDIA Dynamo: token ids in, token ids out.

Dynamo's frontend speaks HTTP, tokenizes, applies chat templates and stop words, parses tool calls
and routes. Admission, checks, guides, deadlines and supervision are those of `Service`, so a worker
refuses what every other route refuses.

- `dynamo`: the command;
- `configuration`: settings and addresses of a worker;
- `requests`: the frontend's requests to ours, our tokens to its chunks;
- `cached_blocks`: the blocks of the KV cache that the router knows;
- `worker`: the engine that Dynamo's runtime drives.
"""
