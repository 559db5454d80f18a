"""Hugging Face repositories through `huggingface_hub`, any release from 0.34 to 2.x.

The library lists files and authenticates. This module reads their contents, because from 1.0 on the
library restarts an interrupted file. Files in Xet storage are fetched by `hf_xet`, many chunks at a
time (``HF_XET_HIGH_PERFORMANCE`` lets it use all cores and bandwidth).
"""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trtllm_truss.artifacts.checksums import Digest
from trtllm_truss.artifacts.hub_errors import HubErrors, keep_urls_out_of_logs
from trtllm_truss.artifacts.listing import File, Listing, is_commit, shown
from trtllm_truss.artifacts.ranges import check_answered, requested
from trtllm_truss.artifacts.remote_source import RemoteSource
from trtllm_truss.artifacts.retrying import Interrupted
from trtllm_truss.artifacts.store import Store
from trtllm_truss.errors import ArtifactError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

logger = logging.getLogger(__name__)

_TIMEOUT_S = 30
_CHUNK_BYTES = 1 << 18
_PARTIAL = 206
_LENGTH = re.compile(r"[0-9]{1,19}")


def open_on_hub(
    repository: str, revision: str | None, *, setting: str, token: str | None
) -> RemoteSource:
    """Open a repository on Hugging Face, stored in Hugging Face's cache (`HF_HOME`).

    Args:
        repository: `org/name`.
        revision: branch, tag or commit; None is the main branch.
        setting: its key in config.yaml, for messages.
        token: the access token; None if not declared, empty if declared without a value.
    """
    from huggingface_hub import constants

    keep_urls_out_of_logs()
    name = f"{setting} {repository!r}"
    wanted = revision or constants.DEFAULT_REVISION
    return RemoteSource(
        name,
        _Hub(repository, wanted, HubErrors(name, revision, token), token),
        Store(Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"),
        wanted,
        fixed=is_commit(wanted),
    )


class _Hub:
    """One revision of one repository; see `transfer.Remote`."""

    def __init__(
        self, repository: str, revision: str, errors: HubErrors, token: str | None
    ) -> None:
        self._repository = repository
        self._revision = revision
        self._errors = errors
        self._token: str | bool = token or False  # never a token stored on this machine
        self._stored: dict[tuple[str, str], str] = {}

    def listing(self) -> Listing:
        from huggingface_hub import HfApi

        try:
            with self._errors.translated():
                info = HfApi(token=self._token).model_info(
                    self._repository,
                    revision=self._revision,
                    files_metadata=True,
                    timeout=_TIMEOUT_S,
                )
            commit = info.sha or self._revision
            return Listing(commit, tuple(_file(sibling, commit) for sibling in info.siblings or ()))
        except (AttributeError, LookupError, TypeError, RecursionError) as error:
            raise ArtifactError(
                f"the response is not the listing of a repository ({type(error).__name__}); check "
                "HF_ENDPOINT."
            ) from error

    @contextmanager
    def open(
        self, commit: str, file: File, start: int, end: int
    ) -> Iterator[tuple[bool, Iterator[bytes]]]:
        """The Hub is asked once where its storage has a file; further ranges come from there."""
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        place = (commit, file.path)
        stored = self._stored.get(place)
        token = self._token if stored is None else False  # storage never gets it
        headers = {**build_hf_headers(token=token), "Accept-Encoding": "identity"}
        url = stored or hf_hub_url(self._repository, file.path, revision=commit)
        with ExitStack() as opened:
            try:
                with self._errors.translated():
                    response = opened.enter_context(
                        _get(url, headers | requested(file, start, end))
                    )
            except (ArtifactError, Interrupted) as error:
                self._stored.pop(place, None)
                if stored is None or isinstance(error, Interrupted):
                    raise
                raise Interrupted("was refused by its storage", "start again") from error
            if urlsplit(str(response.url)).netloc != urlsplit(constants.ENDPOINT).netloc:
                self._stored[place] = str(response.url)
            is_part = response.status_code == _PARTIAL
            if is_part:
                check_answered(response.headers.get("Content-Range"), file, start, end)
            yield is_part, self._chunks(response)

    def fetch_whole(self, commit: str, file: File, destination: Path) -> bool:
        """Fetch through Xet, if the file and this machine support it."""
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url

        # hf_xet does not stop at the listed size, so only the Hub may choose its storage.
        trusted = f"{constants.ENDPOINT}/" == constants.HUGGINGFACE_CO_URL_HOME
        installed = importlib.util.find_spec("hf_xet") is not None
        if not trusted or not installed or constants.HF_HUB_DISABLE_XET:
            return False
        if file.digest is None or file.digest.algorithm != "sha256":  # small files are not in Xet
            return False
        url = hf_hub_url(self._repository, file.path, revision=commit)
        with self._errors.translated():
            if get_hf_file_metadata(url, token=self._token).xet_file_data is None:
                return False
        folder = destination.with_suffix(".xet")
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        try:
            with self._errors.translated():
                fetched = hf_hub_download(
                    self._repository,
                    file.path,
                    revision=commit,
                    local_dir=folder,
                    token=self._token,
                )
            Path(fetched).replace(destination)
        except RuntimeError:  # raised by hf_xet; its text holds signed URLs
            logger.warning(
                "%s: cannot fetch %s through Xet; continuing without it",
                *(self._repository, file.path),
            )
            return False
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return True

    def _chunks(self, response: Any) -> Iterator[bytes]:
        with self._errors.translated("was interrupted"):
            if hasattr(response, "iter_raw"):
                yield from _received(response)
            else:
                yield from response.iter_content(_CHUNK_BYTES)


@contextmanager
def _get(url: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """Stream a GET by httpx (huggingface_hub from 1.0 on) or requests (before)."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        get_session,
        hf_raise_for_status,
    )

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):
        response = session.stream("GET", url, headers=headers, timeout=_TIMEOUT_S)
    else:
        response = closing(session.get(url, headers=headers, timeout=_TIMEOUT_S, stream=True))
    with response as opened:
        hf_raise_for_status(opened)
        yield opened


def _received(response: Any) -> Iterator[bytes]:
    """Yield the body that httpx receives.

    Past its first piece, which empties httpx's buffer, a long body of a known length is read from
    the connection itself: httpx takes a second of CPU per GB. The connection is not used again.
    """
    pieces = response.iter_raw()
    connection = response.extensions.get("network_stream")
    length = response.headers.get("Content-Length", "")
    is_plain = response.http_version == "HTTP/1.1" and "Transfer-Encoding" not in response.headers
    if connection is None or not is_plain or not _LENGTH.fullmatch(length):
        yield from pieces
        return
    left = int(length)
    for piece in pieces:
        yield piece
        left -= len(piece)
        if left > _CHUNK_BYTES:
            break
    while left > 0:
        try:
            chunk = connection.read(min(left, _CHUNK_BYTES), timeout=_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - httpcore's or httpcore2's
            raise ConnectionError(type(error).__name__) from None
        if not chunk:
            raise ConnectionError
        yield chunk
        left -= len(chunk)


def _file(sibling: RepoSibling, commit: str) -> File:
    """Convert a listed file; Git hashes small files, and Git LFS hashes large ones."""
    path, lfs, blob_id = sibling.rfilename, sibling.lfs, sibling.blob_id
    size = sibling.size if lfs is None else lfs.size
    if size is None:
        raise ArtifactError(
            f"{shown(path)} is listed without its size; set HF_ENDPOINT to a mirror that answers "
            "`?blobs=true` with sizes, or use a folder or S3."
        )
    if lfs is None and not blob_id:
        return File.unhashed(commit, path, size)
    digest = Digest("git-sha1", blob_id or "") if lfs is None else Digest("sha256", lfs.sha256)
    return File(path, size, digest.value, digest)
