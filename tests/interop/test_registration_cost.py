"""The cost of registrations, counted in the broker's process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from tests.support.klamm import KlammBroker
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

COUNTING = """
import os

def _counted(real):
    def sync(file):
        with open(os.environ["KLAMM_TEST_SYNCS"], "ab") as count:
            count.write(b".")
        return real(file)
    return sync

os.fsync, os.fdatasync = _counted(os.fsync), _counted(os.fdatasync)
"""
REGISTRATIONS = 50


def ask(client: WireClient, request: DescribeClientConfigsRequest) -> list[DescribeClientConfigsResponse.EntryData]:
    answer = client.ask(request, DescribeClientConfigsResponse, 0)
    assert (answer.error_code, answer.error_message) == (0, None)
    return list(answer.entries or [])


def register(client: WireClient, name: str) -> None:
    component = DescribeClientConfigsRequest.ComponentData(entity_type="client-id", match_type=0, match=name)
    request = DescribeClientConfigsRequest(components=[component], supported_configs=["acks"], resolve_entity=True)
    assert len(ask(client, request)) == 1


def registered(client: WireClient) -> int:
    users = DescribeClientConfigsRequest.ComponentData(entity_type="user", match_type=0, match="ANONYMOUS")
    clients = DescribeClientConfigsRequest.ComponentData(entity_type="client-id", match_type=2, match=None)
    return len(ask(client, DescribeClientConfigsRequest(components=[users, clients], strict=True)))


def committed(data_dir: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the metadata's files: SQLite writes before it fsyncs, and only then."""
    files = [data_dir / f"metadata.sqlite{suffix}" for suffix in ("", "-wal")]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def test_registration_needs_no_fsync_once_its_topic_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K649-40: The broker writes the registration to an internal topic.

    K649-44: The topic must not be plain-compacted: same key for many versions, compaction would lose all but the last.
    """
    # given a broker that counts its fsyncs, and the first registration, which makes the topic
    syncs = tmp_path / "syncs"
    (tmp_path / "sitecustomize.py").write_text(COUNTING)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("KLAMM_TEST_SYNCS", str(syncs))
    with KlammBroker() as broker, WireClient(broker.bootstrap_servers, timeout_s=60) as client:
        register(client, "first")
        counted, before = syncs.stat().st_size, committed(broker.data_dir)
        assert counted > 0
        # when
        for number in range(REGISTRATIONS):
            register(client, f"application-{number}")
        # then
        assert registered(client) == 1 + REGISTRATIONS
        assert syncs.stat().st_size - counted < REGISTRATIONS // 10  # housekeeping may have its turn meanwhile
        assert committed(broker.data_dir) == before
