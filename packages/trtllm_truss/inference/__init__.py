"""The path of a request between its protocol and Triton.

In the order of a request:

- `pipeline`: the parts below, assembled for an engine;
- `generation`: the whole way;
- `preprocessing`: a validated request → `PreparedRequest`; `tokenization`, `encoding_queue`: its
  prompt → token ids;
- `call_parts`: the requests of a call with several prompts or answers; `merging`: their streams;
- `admission`: run, queue or reject; `service_time`: how long; `start_throttle`, `fair_queue`: when;
- `heartbeat`: the engine's last sign of life;
- `answer_reader`: tokens → text; `deadlines`, `reasoning`: when it ends, where reasoning does.
"""
