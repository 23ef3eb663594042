"""Workarounds for losses of kafka-python."""

from __future__ import annotations

from types import SimpleNamespace

from kafka.cluster import ClusterMetadata


def test_topic_added_during_metadata_request_is_requested_again() -> None:
    # given
    cluster = ClusterMetadata(bootstrap_servers="127.0.0.1:1")
    response = SimpleNamespace(
        API_VERSION=9, brokers=[(1, "127.0.0.1", 1, None)], controller_id=1, cluster_id="c", topics=[]
    )
    # when
    cluster.set_topics(["named-later"])
    cluster.update_metadata(response)
    # then
    assert cluster.need_update
