"""Hugging Face repositories through `huggingface_hub`, any release from 0.34 to 2.x.

The library names addresses, sends the token, follows the Hub's redirects, and fetches what is in
Xet storage, by `hf_xet` with many chunks at a time (``HF_XET_HIGH_PERFORMANCE`` lets it use all
cores and bandwidth). Listings are requested in its session, but read here: `HfApi.model_info` and
`list_repo_tree` take a response of any length (2.4.0, hf_api.py:3214 and utils/_pagination.py:46).

The Hub responds alike for a missing repository and for one that the caller may not read: 404, and
401 without a token. An unknown token gets 401 everywhere.
(https://huggingface.co/docs/hub/api; `hf_raise_for_status` of huggingface_hub.)
"""

from __future__ import annotations

import errno
import importlib.util
import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urljoin, urlsplit

from trtllm_truss.artifacts.byte_ranges import WrongContentsError, check_answered, requested
from trtllm_truss.artifacts.cache import Cache
from trtllm_truss.artifacts.listing import Digest, File, Listing, check_count, is_commit, shown
from trtllm_truss.artifacts.range_client import RangeClient, origin
from trtllm_truss.artifacts.remote_source import RemoteSource
from trtllm_truss.artifacts.retrying import Interrupted, Unreachable
from trtllm_truss.errors import ArtifactError, TrussError
from trtllm_truss.local_requests import is_loopback

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_SECRET = "the secret hf_access_token"  # noqa: S105 - its name, not its value
_WHERE = "set it in Baseten's workspace, or locally as TRUSS_SECRET_hf_access_token"
_TRANSIENT = {408, 429}
_RANGE_NOT_SATISFIABLE = 416
_SECONDS = re.compile(r"[0-9]+")
_URL_LOGGERS = ("httpx", "httpx2", "httpcore", "httpcore2", "urllib3")
_DISK_PROBLEMS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}


def keep_urls_out_of_logs() -> None:
    """Silence the loggers of the HTTP libraries: they log every URL, signed ones included."""
    for library in _URL_LOGGERS:
        logging.getLogger(library).setLevel(logging.WARNING)


class HubErrors:
    """Translates errors of requests about one repository.

    Args:
        name: the setting and the repository: ``engine_repository 'org/name'``.
        revision: branch, tag or commit; None is the main branch.
        token: None if not declared, empty if declared without a value; not sent to an
            `unsafe_endpoint`.
    """

    def __init__(self, name: str, revision: str | None, token: str | None) -> None:
        self._name = name
        self._revision = revision
        self._unsafe = unsafe_endpoint() if token else None
        self._token = None if self._unsafe else token

    @contextmanager
    def translated(self, lost: str = "cannot be reached") -> Iterator[None]:
        """Translate errors of huggingface_hub and its HTTP library.

        Args:
            lost: description of a lost connection.

        Raises:
            Interrupted: the error may be transient.
            ArtifactError: the error is permanent.
        """
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

        library_errors: Any = HfHubHTTPError.__bases__  # httpx's errors, or requests'
        try:
            yield
        except (TrussError, Interrupted):
            raise
        except HFValidationError:
            raise ArtifactError(
                f"{self._name} is not a valid name on Hugging Face; it must be `org/name`."
            ) from None
        except OfflineModeIsEnabled:
            raise Unreachable(
                f"{self._name} is not on this machine, and HF_HUB_OFFLINE forbids downloads; unset "
                "the variable, or fetch the repository beforehand."
            ) from None
        except HfHubHTTPError as error:
            raise self._error_of(error) from None
        except (OSError, ValueError, *library_errors) as error:
            if isinstance(error, OSError) and error.errno in _DISK_PROBLEMS:
                raise
            raise Interrupted(
                f"{lost} ({type(error).__name__})",
                "check this machine's network and HF_ENDPOINT",
            ) from None

    def _error_of(self, error: HfHubHTTPError) -> Exception:
        response: Any = error.response
        status = 0 if response is None else response.status_code
        if response is None or status in _TRANSIENT or status >= 500:
            wait = None if response is None else response.headers.get("Retry-After")
            return Interrupted(
                f"met HTTP status {status}" if status != 429 else "met the Hub's rate limit (429)",
                "try again later"
                + ("" if self._token else f", or set {_SECRET} for a higher limit"),
                retry_after_s=float(wait) if wait and _SECONDS.fullmatch(wait) else None,
            )
        if status == _RANGE_NOT_SATISFIABLE:
            return Interrupted("is shorter than the repository lists", "upload the file again")
        if (host := _storage(response)) is not None:
            return Interrupted(
                f"was refused by its storage {host} (HTTP status {status})",
                "try again, and check that this machine's proxies allow that host",
            )
        return ArtifactError(f"{self._name} {self._refusal(error, status)}.")

    def _refusal(self, error: HfHubHTTPError, status: int) -> str:
        from huggingface_hub import errors

        if isinstance(error, errors.GatedRepoError):
            return "is gated: request access on its page on Hugging Face, with the account of " + (
                "the token" if self._token else f"{_SECRET} ({self._no_token})"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            key = self._name.split()[0].replace("repository", "revision")
            return f"has no revision {self._revision!r}; correct {key}"
        if isinstance(error, errors.EntryNotFoundError):
            return "lists a file that it fails to serve; try again, it may have just changed"
        if isinstance(error, errors.DisabledRepoError):
            return "was disabled by Hugging Face; use another repository"
        if status == 401 and self._token:
            return (
                f"was refused: Hugging Face does not know the token; put a valid one in {_SECRET}"
            )
        if status == 403:
            return f"was refused to this token; give the token in {_SECRET} read access to it"
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
            reason = "the token's owner may not read it" if self._token else self._no_token
            return f"does not exist, or is private and {reason}; check the name and {_SECRET}"
        return f"was refused with HTTP status {status}; check the name and HF_ENDPOINT"

    @property
    def _no_token(self) -> str:
        if self._unsafe:
            return f"{_SECRET} was not sent: HF_ENDPOINT is {self._unsafe}; set it to an https URL"
        return f"{_SECRET} is {'not set' if self._token is None else 'empty'}; {_WHERE}"


def _storage(response: Any) -> str | None:
    """Return the responding host, unless it is the Hub; signed storage URLs have no token."""
    from huggingface_hub import constants

    host = urlsplit(str(response.url)).netloc.rpartition("@")[2]
    is_hub = host == urlsplit(constants.ENDPOINT).netloc or "X-Error-Message" in response.headers
    return None if is_hub else host


def unsafe_endpoint() -> str | None:
    """Return `HF_ENDPOINT` if a token would cross a network unencrypted: http to another host."""
    from huggingface_hub import constants

    place = urlsplit(constants.ENDPOINT)
    host = place.hostname or ""
    if place.scheme == "https" or is_loopback(host):
        return None
    return f"{place.scheme}://{host}"


logger = logging.getLogger(__name__)

_TIMEOUT_S = 30
_CHUNK_BYTES = 1 << 18
_MAX_LISTING_BYTES = 1 << 24
_PARTIAL = 206
_Answer = tuple[bool, "Mapping[str, str] | HTTPMessage", Iterator["bytes | memoryview"]]


def open_on_hub(
    repository: str, revision: str | None, *, setting: str, token: str | None
) -> RemoteSource:
    """Open a repository on Hugging Face, stored in Hugging Face's cache (`HF_HOME`).

    Args:
        repository: `org/name`.
        revision: branch, tag or commit; None is the main branch.
        setting: its key in config.yaml, for messages.
        token: access token; None if not declared, empty if declared without a value.
    """
    from huggingface_hub import constants

    keep_urls_out_of_logs()
    name = f"{setting} {repository!r}"
    wanted = revision or constants.DEFAULT_REVISION
    errors = HubErrors(name, revision, token)
    if token and (endpoint := unsafe_endpoint()):
        logger.warning(
            "HF_ENDPOINT is %s: the secret hf_access_token is sent over https only; continuing "
            "without it",
            endpoint,
        )
        token = None
    cache = Cache(Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}")
    hub = _Hub(repository, wanted, errors, token, cache)
    return RemoteSource(name, hub, cache, wanted, fixed=is_commit(wanted))


class _Hub:
    """One revision of one repository; see `transfer.Remote`."""

    def __init__(
        self,
        repository: str,
        revision: str,
        errors: HubErrors,
        token: str | None,
        cache: Cache,
    ) -> None:
        self._repository = repository
        self._revision = revision
        self._errors = errors
        self._token: str | Literal[False] = token or False  # never one stored on this machine
        self._cache = cache
        self._direct = RangeClient()
        self._asking: dict[tuple[str, str], threading.Lock] = {}
        self._addresses: dict[tuple[str, str], str] = {}
        self._tags: dict[tuple[str, str], str | None] = {}

    def listing(self) -> Listing:
        """List the files in one response of limited length, and record them."""
        try:
            info = json.loads(self._model_info())
            commit = info.get("sha") or self._revision
            siblings = info.get("siblings") or ()
            check_count(len(siblings))
            tree = [(sibling["rfilename"], _tree_entry(sibling)) for sibling in siblings]
            listing = Listing(commit, tuple(_file(commit, *entry) for entry in tree))
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ArtifactError(
                f"the response is not the listing of a repository ({type(error).__name__}); check "
                "HF_ENDPOINT."
            ) from error
        if all(entry["blob_id"] for _, entry in tree):  # some mirrors lack them
            self._cache.remember_tree(commit, dict(tree))
        return listing

    def recorded(self, commit: str) -> Listing | None:
        try:
            tree = self._cache.tree(commit)
            files = tuple(_file(commit, path, entry) for path, entry in tree.items())
            return Listing(commit, files) if files else None
        except (ArtifactError, AttributeError, LookupError, TypeError):
            return None

    def _model_info(self) -> bytes:
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, validate_repo_id  # type: ignore[attr-defined]

        content = bytearray()
        with ExitStack() as opened, self._errors.translated():
            validate_repo_id(self._repository)
            url = (
                f"{constants.ENDPOINT}/api/models/{self._repository}/revision/"
                f"{quote(self._revision, safe='')}?blobs=true"
            )
            headers = {**build_hf_headers(token=self._token), "Accept-Encoding": "identity"}
            for chunk in _chunks(opened.enter_context(_get(url, headers))):
                content += chunk
                if len(content) > _MAX_LISTING_BYTES:
                    raise ArtifactError(
                        f"the listing has more than {_MAX_LISTING_BYTES:,} bytes; use a repository "
                        "with fewer files."
                    )
        return bytes(content)

    @contextmanager
    def open(
        self, commit: str, file: File, start: int, end: int
    ) -> Iterator[tuple[bool, Iterator[bytes | memoryview]]]:
        """Fetch a whole file from the Hub, and ranges from where the Hub says the file is."""
        wanted = requested(file, start, end)
        with ExitStack() as opened:
            is_part, headers, chunks = self._open_address(
                opened, commit, file, wanted, end - start
            ) or self._open_hub(opened, commit, file, wanted)
            if is_part:
                check_answered(headers.get("Content-Range"), file, start, end)
            tag = headers.get("ETag")
            if file.digest is None and self._tags.setdefault((commit, file.path), tag) != tag:
                raise WrongContentsError.changed(file)
            yield is_part, self._translated(chunks)

    def close(self) -> None:
        self._direct.close()
        self._addresses.clear()
        self._tags.clear()

    def fetch_whole(self, commit: str, file: File) -> bool:
        """Fetch through Xet, if the file and this machine support it."""
        from huggingface_hub import constants, hf_hub_download

        # hf_xet does not stop at the listed size, so only the Hub may choose its storage.
        trusted = f"{constants.ENDPOINT}/" == constants.HUGGINGFACE_CO_URL_HOME
        installed = importlib.util.find_spec("hf_xet") is not None
        if not trusted or not installed or constants.HF_HUB_DISABLE_XET:
            return False
        if file.digest is None or file.digest.algorithm != "sha256":  # small files are not in Xet
            return False
        try:
            with self._errors.translated():
                if self._metadata(commit, file).xet_file_data is None:
                    return False
                hf_hub_download(self._repository, file.path, revision=commit, token=self._token)
        except RuntimeError:  # raised by hf_xet; its text holds signed URLs
            logger.warning(
                "%s: cannot fetch %s through Xet; continuing without it",
                *(self._repository, file.path),
            )
            return False
        return True

    def _metadata(self, commit: str, file: File) -> Any:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(self._repository, file.path, revision=commit)
        return get_hf_file_metadata(url, token=self._token)

    def _address(self, commit: str, file: File) -> str:
        """Return the URL of a file's contents; other threads wait while one asks the Hub."""
        from huggingface_hub import hf_hub_url

        place = commit, file.path
        with self._asking.setdefault(place, threading.Lock()):
            if place not in self._addresses:
                url = hf_hub_url(self._repository, file.path, revision=commit)
                with self._errors.translated():
                    self._addresses[place] = urljoin(url, self._metadata(commit, file).location)
            return self._addresses[place]

    def _open_address(
        self, opened: ExitStack, commit: str, file: File, wanted: Mapping[str, str], count: int
    ) -> _Answer | None:
        """Request a range where the file is; None if `RangeClient` cannot."""
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        if not wanted or not self._direct.is_usable:
            return None
        url = self._address(commit, file)
        token = self._token if origin(url) == origin(constants.ENDPOINT) else False
        headers = {**build_hf_headers(token=token), "Accept-Encoding": "identity", **wanted}
        answer = opened.enter_context(self._direct.get(url, headers, count))
        if answer is None:  # a signed URL expires
            self._addresses.pop((commit, file.path), None)
            return None
        return True, *answer

    def _open_hub(
        self, opened: ExitStack, commit: str, file: File, wanted: Mapping[str, str]
    ) -> _Answer:
        """Request a file at the Hub, which may send it or redirect to its storage."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = {**build_hf_headers(token=self._token), "Accept-Encoding": "identity", **wanted}
        url = hf_hub_url(self._repository, file.path, revision=commit)
        with self._errors.translated():
            response = opened.enter_context(_get(url, headers))
        return response.status_code == _PARTIAL, response.headers, _chunks(response)

    def _translated(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        with self._errors.translated("was interrupted"):
            yield from chunks


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


def _chunks(response: Any) -> Iterator[bytes]:
    """Return the body of httpx's or of requests' response, in chunks."""
    raw = hasattr(response, "iter_raw")
    chunks: Iterator[bytes] = response.iter_raw() if raw else response.iter_content(_CHUNK_BYTES)
    return chunks


def _tree_entry(sibling: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a listed file to an entry of `Cache.tree`."""
    lfs, blob_id = sibling.get("lfs"), sibling.get("blobId") or ""
    if lfs is None:
        return {"size": sibling.get("size"), "blob_id": blob_id}
    size = lfs["size"]
    return {"size": size, "blob_id": blob_id, "lfs_sha256": lfs["sha256"], "lfs_size": size}


def _file(commit: str, path: str, entry: Mapping[str, Any]) -> File:
    """Convert an entry of `Cache.tree`; Git hashes small files, and Git LFS hashes large ones."""
    size, blob_id, sha256 = entry["size"], entry["blob_id"], entry.get("lfs_sha256")
    if size is None:
        raise ArtifactError(
            f"{shown(path)} is listed without its size; set HF_ENDPOINT to a mirror that answers "
            "`?blobs=true` with sizes, or use a folder or S3."
        )
    if sha256 is None and not blob_id:
        return File.unhashed(commit, path, size)
    digest = Digest("git-sha1", blob_id) if sha256 is None else Digest("sha256", sha256)
    return File(path, size, digest.value, digest)
