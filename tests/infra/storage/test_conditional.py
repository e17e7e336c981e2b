from __future__ import annotations

from datetime import UTC, datetime
from io import BytesIO

from polypool.infra.storage import conditional
from polypool.infra.storage.places import Url


def test_the_age_of_a_file_is_by_the_clock_of_the_storage(monkeypatch):
    answer = {
        "Body": BytesIO(b"x"),
        "ETag": '"etag"',
        "LastModified": datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC),
        "ResponseMetadata": {"HTTPHeaders": {"date": "Thu, 01 Jan 2026 12:01:30 GMT"}},
    }
    monkeypatch.setattr(conditional, "_request", lambda *_, **__: answer)
    found = conditional.read(Url(scheme="s3", path="bucket/lease"))
    assert found is not None
    assert found.age == 90
