"""Destinations of the Hugging Face access token."""

from __future__ import annotations

from urllib.parse import urlsplit

from trtllm_truss.settings.addresses import is_loopback


def unsafe_endpoint() -> str | None:
    """Return `HF_ENDPOINT` if a token would cross a network unencrypted: http to another host."""
    from huggingface_hub import constants

    place = urlsplit(constants.ENDPOINT)
    host = place.hostname or ""
    if place.scheme == "https" or is_loopback(host):
        return None
    return f"{place.scheme}://{host}"
