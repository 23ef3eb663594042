"""Random ids of topics and of the cluster."""

from __future__ import annotations

from uuid import UUID

from klamm.protocol.primitives import random_uuid, uuid_text


def test_random_uuid_text_never_starts_with_a_dash() -> None:
    dashed, plain = UUID("f8000000-0000-4000-8000-000000000000"), UUID("00000000-0000-4000-8000-000000000000")
    assert uuid_text(dashed).startswith("-")
    drawn = iter([dashed, dashed, plain])
    assert random_uuid(lambda: next(drawn)) == plain
    assert not [text for text in (uuid_text(random_uuid()) for _ in range(2_000)) if text.startswith("-")]


def test_uuid_text_matches_kafka() -> None:
    assert uuid_text(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"
