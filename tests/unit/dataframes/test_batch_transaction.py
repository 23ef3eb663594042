"""Metadata of a committed batch id of an exactly-once query."""

from __future__ import annotations

import pytest

from klamm.dataframes.batch_transaction import parse_count
from klamm.dataframes.errors import WritingError


def test_number_of_records_is_in_the_metadata() -> None:
    assert parse_count('{"records": 7}') == 7


@pytest.mark.parametrize(
    "metadata", ["", "7", '{"records": null}', '{"records": "x"}', "{}", "[" * 100_000], ids=lambda text: text[:20]
)
def test_metadata_of_another_application_fails_the_query(metadata: str) -> None:
    with pytest.raises(WritingError, match="another application commits offsets for this group"):
        parse_count(metadata)
