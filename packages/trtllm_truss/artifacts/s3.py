"""Repositories in S3 and compatible stores, through boto3 (`trtllm-truss[s3]`).

Credentials, region and endpoint come from boto3's standard chain: the variables ``AWS_*``
(``AWS_ENDPOINT_URL_S3`` for another server than AWS), shared files, the machine's role.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.byte_ranges import check_answered, requested
from trtllm_truss.artifacts.cache import Cache
from trtllm_truss.artifacts.listing import Digest, File, Listing, check_count
from trtllm_truss.artifacts.remote_source import RemoteSource
from trtllm_truss.artifacts.retrying import Interrupted
from trtllm_truss.errors import ArtifactError, TrussError

S3 = "s3://"

_AT_ONCE = 8
_CHUNK_BYTES = 1 << 18
_MD5 = re.compile(r"[0-9a-f]{32}")
_CODE = re.compile(r"[0-9A-Za-z._-]{1,64}")
_PARTIAL = 206
_RANGE_NOT_SATISFIABLE = 416
_REFUSALS = {
    "NoSuchBucket": "names a bucket that does not exist; check the name",
    "AccessDenied": "is refused to these credentials; give them s3:ListBucket and s3:GetObject",
    "InvalidAccessKeyId": "is refused: S3 does not know the access key; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "is refused: the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "is refused: the session has expired; renew the credentials",
    "InvalidToken": "is refused: the session token is wrong; check AWS_SESSION_TOKEN",
    "PermanentRedirect": "is in another region; set AWS_DEFAULT_REGION to the bucket's",
    "PreconditionFailed": "changed during the download; start again",
    "NoSuchKey": "changed during the download; start again",
}


def open_on_s3(url: str, *, setting: str) -> RemoteSource:
    """Open the objects below `s3://bucket/prefix`, stored in `HF_HOME`.

    Args:
        setting: its key in config.yaml, for messages.

    Raises:
        ArtifactError: the URL has no bucket, or boto3 is not installed.
    """
    from huggingface_hub import constants

    name = f"{setting} {url!r}"
    bucket, _, prefix = url.removeprefix(S3).partition("/")
    prefix = prefix.strip("/")
    if not bucket:
        raise ArtifactError(f"{name} has no bucket; it must be `s3://bucket/prefix`.")
    folder = hashlib.sha256(f"{bucket}/{prefix}".encode()).hexdigest()[:16]
    cache = Cache(Path(constants.HF_HOME) / "trtllm-truss/s3" / f"{bucket}--{folder}")
    return RemoteSource(name, _Bucket(name, bucket, prefix), cache, "latest", fixed=False)


class _Bucket:
    """The objects below one prefix; see `transfer.Remote`."""

    def __init__(self, name: str, bucket: str, prefix: str) -> None:
        self._name = name
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = _new_client(name)

    def listing(self) -> Listing:
        """List the objects; a change to any object changes the commit."""
        with self._translated_errors(), ThreadPoolExecutor(_AT_ONCE) as threads:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            wanted: list[str] = []
            for page in pages:
                keys = (entry["Key"] for entry in page.get("Contents", ()))
                # Consoles create empty objects as folders.
                wanted += (key for key in keys if not key.endswith("/"))
                check_count(len(wanted))
            files = tuple(threads.map(self._file, wanted))
        if not files:
            raise ArtifactError(f"{self._name} has no objects; check the prefix.")
        contents = sorted(f"{file.path} {file.size} {file.content_id}" for file in files)
        return Listing(hashlib.sha256("\n".join(contents).encode()).hexdigest()[:40], files)

    @contextmanager
    def open(
        self, commit: str, file: File, start: int, end: int
    ) -> Iterator[tuple[bool, Iterator[bytes | memoryview]]]:
        """Open an object, only in the version that was listed."""
        with ExitStack() as opened:
            with self._translated_errors():
                answer = self._client.get_object(
                    Bucket=self._bucket,
                    Key=f"{self._prefix}{file.path}",
                    IfMatch=f'"{file.content_id}"',
                    **requested(file, start, end),
                )
            body = opened.enter_context(closing(answer["Body"]))
            is_part = answer["ResponseMetadata"]["HTTPStatusCode"] == _PARTIAL
            if is_part:
                check_answered(answer.get("ContentRange"), file, start, end)
            yield is_part, self._chunks(body)

    def recorded(self, commit: str) -> Listing | None:
        return None

    def fetch_whole(self, commit: str, file: File) -> bool:
        return False

    def close(self) -> None:
        """Keep the connections: boto3's client uses them for the next download."""

    def _file(self, key: str) -> File:
        head = self._client.head_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
        tag = head["ETag"].strip('"')
        return File(key.removeprefix(self._prefix), head["ContentLength"], tag, _digest(head, tag))

    def _chunks(self, body: Any) -> Iterator[bytes]:
        with self._translated_errors():
            while chunk := body.read(_CHUNK_BYTES):
                yield chunk

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors of boto3, without their cause, which contains URLs."""
        from botocore import exceptions, parsers

        try:
            yield
        except (TrussError, Interrupted):
            raise
        except exceptions.ClientError as error:
            raise self._error_of(error.response) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError):
            raise ArtifactError(
                f"{self._name} needs credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "or give the machine a role."
            ) from None
        except exceptions.ParamValidationError:
            raise ArtifactError(f"{self._name} is an invalid bucket name; check it.") from None
        except (exceptions.BotoCoreError, OSError) as error:
            raise Interrupted(
                f"cannot be reached ({type(error).__name__})",
                "check this machine's network and AWS_ENDPOINT_URL_S3",
            ) from None
        except (parsers.ResponseParserError, AttributeError, LookupError, ValueError) as error:
            raise ArtifactError(
                f"{self._name}: the response violates S3's protocol ({type(error).__name__}); "
                "check AWS_ENDPOINT_URL_S3."
            ) from None

    def _error_of(self, response: Mapping[str, Any]) -> Exception:
        status = response["ResponseMetadata"]["HTTPStatusCode"]
        code = response["Error"].get("Code") or ""
        code = code if _CODE.fullmatch(code) else "Unknown"  # the server's text goes into logs
        if status in (429, 503) or status >= 500:
            return Interrupted(f"met {code} (HTTP status {status})", "try again later")
        if status == _RANGE_NOT_SATISFIABLE:
            return Interrupted("is shorter than the repository lists", "upload the file again")
        by_status = {"403": "AccessDenied", "404": "NoSuchKey", "412": "PreconditionFailed"}
        refusal = _REFUSALS.get(by_status.get(code, code), f"was refused by S3 ({code})")
        return ArtifactError(f"{self._name} {refusal}.")


def _new_client(name: str) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise ArtifactError(
            f"{name} needs boto3; add `boto3` to requirements.txt, or install trtllm-truss[s3]."
        ) from error
    retries: Any = {"mode": "standard", "max_attempts": 1}  # `retrying` retries
    return boto3.client("s3", config=Config(retries=retries, connect_timeout=10, read_timeout=30))


def _digest(head: Mapping[str, Any], tag: str) -> Digest | None:
    """Return the digest of an object, if S3 has one.

    Objects uploaded with a SHA-256 have one. The ETag is the MD5 of objects that were uploaded in
    one part and are not encrypted by a customer's key
    (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html).
    """
    sha256 = head.get("ChecksumSHA256", "")
    if sha256 and head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" and "-" not in sha256:
        return Digest("sha256", base64.b64decode(sha256).hex())
    if _MD5.fullmatch(tag) and head.get("ServerSideEncryption", "AES256") == "AES256":
        return Digest("md5", tag)
    return None
