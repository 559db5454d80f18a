"""The headers `Range` and `Content-Range` of requests for a part of a file."""

from __future__ import annotations

import re

from trtllm_truss.artifacts.listing import File
from trtllm_truss.artifacts.retrying import Interrupted
from trtllm_truss.errors import ArtifactError

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


class WrongContentsError(ArtifactError):
    """The server sends other contents than it listed; the caller removes what has arrived."""

    @classmethod
    def longer(cls, file: File) -> WrongContentsError:
        return cls(
            f"{file.path} is longer than the {file.size} bytes that the repository lists, and was "
            "removed; try again, and use another repository or mirror if that does not help."
        )

    @classmethod
    def changed(cls, file: File) -> WrongContentsError:
        return cls(f"{file.path} changed during the download, and was removed; start again.")


def requested(file: File, start: int, end: int) -> dict[str, str]:
    """Return the header `Range` for `start` to before `end`; none for a whole file."""
    return {} if (start, end) == (0, file.size) else {"Range": f"bytes={start}-{end - 1}"}


def check_answered(content_range: str | None, file: File, start: int, end: int) -> None:
    """Compare the `Content-Range` of an answer with status 206 with the request.

    Raises:
        Interrupted: it is another range, or of a shorter file.
        WrongContentsError: it is of a longer file.
    """
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is None or int(match[1]) != start or not start <= int(match[2]) < end:
        raise Interrupted(
            f"was answered with other bytes than {start}-{end - 1}",
            "check this machine's proxies, and use another repository or mirror",
        )
    total = file.size if match[3] == "*" else int(match[3])
    if total < file.size:
        raise Interrupted("is shorter than the repository lists", "upload the file anew")
    if total > file.size:
        raise WrongContentsError.longer(file)
