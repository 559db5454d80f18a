"""A worker of NVIDIA Dynamo: token ids in, token ids out.

Dynamo's frontend speaks HTTP, tokenizes, applies chat templates and stop words, parses tool calls
and routes. A worker uses the admission, checks, guides, deadlines and supervision of `Service`, so
it refuses the same requests as every other route.

- `dynamo`: the command;
- `configuration`: settings and addresses of a worker;
- `requests`: converts the frontend's requests to ours, and our tokens to its chunks;
- `cached_blocks`: the KV cache blocks that the router knows;
- `worker`: the engine driven by Dynamo's runtime.
"""
