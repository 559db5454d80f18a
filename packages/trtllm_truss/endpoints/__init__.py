"""HTTP endpoints, and in-process `predict`.

- `application`: the ASGI application of both servers;
- `routes`: paths → protocols;
- `endpoint`: one request;
- `connection`: its client; `encoded_body`, `streamed_response`: its answer.
"""
