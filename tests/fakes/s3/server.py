"""Moto's S3 server on loopback, with boto3 configured to use it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock


def environment_for(port: int) -> dict[str, str]:
    """Return the variables that point boto3 at a server on loopback."""
    return {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "s3-secret-of-the-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class S3Server:
    """The server and a client."""

    def __init__(self, port: int) -> None:
        import boto3

        self.environment = environment_for(port)
        with mock.patch.dict(os.environ, self.environment):
            self.client: Any = boto3.client("s3")

    def upload(self, bucket: str, prefix: str, files: Mapping[str, bytes], **options: Any) -> None:
        with contextlib.suppress(self.client.exceptions.BucketAlreadyOwnedByYou):
            self.client.create_bucket(Bucket=bucket)
        for path, data in files.items():
            self.client.put_object(Bucket=bucket, Key=f"{prefix}/{path}", Body=data, **options)


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer  # takes half a second

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        yield S3Server(server.get_host_and_port()[1])
    finally:
        server.stop()
