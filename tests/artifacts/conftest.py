from __future__ import annotations

from tests.support.repositories import cache, canaries, hub, s3, s3_session  # noqa: F401 - fixtures
