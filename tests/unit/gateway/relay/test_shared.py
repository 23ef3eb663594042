"""Counters of requests by client id, however many and long the client ids are."""

from __future__ import annotations

from klamm.gateway.relay.shared import MAX_CLIENT_ID_LENGTH, MAX_CLIENT_IDS, OTHER, RequestCounts


def test_few_client_ids_of_moderate_length_have_their_own_counters() -> None:
    counts = RequestCounts()
    longest, too_long = "x" * MAX_CLIENT_ID_LENGTH, "x" * (MAX_CLIENT_ID_LENGTH + 1)
    for client_id in (None, longest, too_long, *map(str, range(MAX_CLIENT_IDS)), "late", longest):
        counts.count(0, client_id)
    assert len(counts.counts) == MAX_CLIENT_IDS + 1
    assert (counts.counts[0, None], counts.counts[0, longest], counts.counts[0, OTHER]) == (1, 2, 4)
