"""HTTP endpoints, and in-process `predict`.

- `application`: the ASGI application of both servers;
- `truss_application`: the guard in front of Truss's own application;
- `routes`: paths → protocols;
- `guard`: limits of request bodies, applied before an endpoint is called;
- `endpoint`: one request;
- `connection`: its client; `encoded_body`, `streamed_response`: its response;
- `connection_limit`: a limit of connections, below that of open files.
"""
