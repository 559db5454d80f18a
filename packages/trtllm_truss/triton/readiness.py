"""Asks a Triton server whether it and one model are ready."""

from __future__ import annotations

import http.client
import json

from trtllm_truss.triton.ports import LOOPBACK


def is_ready(http_port: int, model_name: str, *, server_id: str, timeout_s: float = 0.5) -> bool:
    """Asks over HTTP; a refused, broken or slow connection is a no.

    Triton opens its gRPC port before its HTTP port, so a yes covers both. The name is asked last:
    another server may have taken the port, and would say yes for us.
    """
    connection = http.client.HTTPConnection(LOOPBACK, http_port, timeout=timeout_s)
    try:
        return (
            _get(connection, "/v2/health/ready") is not None
            and _get(connection, f"/v2/models/{model_name}/ready") is not None
            and json.loads(_get(connection, "/v2") or b"{}").get("name") == server_id
        )
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def _get(connection: http.client.HTTPConnection, path: str) -> bytes | None:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    return body if response.status == http.client.OK else None
