"""Translation of Hugging Face's errors.

The Hub responds alike for a missing repository and for one that the caller may not read: 404, and
401 without a token. An unknown token gets 401 everywhere.
(https://huggingface.co/docs/hub/api; `hf_raise_for_status` of huggingface_hub.)
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trtllm_truss.artifacts.hub_token import unsafe_endpoint
from trtllm_truss.artifacts.retrying import Interrupted, Unreachable
from trtllm_truss.errors import ArtifactError, TrussError

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
        response = error.response
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
