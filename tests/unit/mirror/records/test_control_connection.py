from __future__ import annotations

import contextlib

import pytest

import klamm
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.records.internal_topic import ControlConnection, TopicGoneError
from klamm.protocol.records import Record
from tests.support.mirror import create_topic

pytestmark = pytest.mark.process


def test_control_connection_reads_from_offset_to_end() -> None:
    """K894-41: and a topic that is not there, or was created again, is not an empty topic."""
    with klamm.Broker() as broker:
        # given
        create_topic(broker.bootstrap_servers, "own")
        settings = ConnectionSettings.of((broker.bootstrap_servers,), {}, "test")
        with contextlib.closing(ControlConnection(settings)) as connection:
            # when
            connection.write("own", [Record(key=b"a", value=b"%d" % number, timestamp=7) for number in range(3)])
            connection.write("own", [Record(key=b"a", value=None, headers=(("h", b"1"),), timestamp=8)])
            # then
            records, next_offset = connection.read("own", 0)
            assert [(record.offset, record.value) for record in records] == [(0, b"0"), (1, b"1"), (2, b"2"), (3, None)]
            assert next_offset == 4
            assert [record.headers for record in connection.read("own", 3)[0]] == [(("h", b"1"),)]
            assert connection.read("own", 4) == ([], 4)
            assert connection.end_offsets([("own", 0), ("own", 1), ("nowhere", 0)]) == {("own", 0): 4}
            assert connection.end_offsets([]) == {}
            assert [connection.offset_at("own", time_ms) for time_ms in (7, 8, 9)] == [0, 3, -1]
            assert connection.offset_at("nowhere", 7) is None
            assert connection.log_bounds([("own", 0), ("own", 1), ("nowhere", 0)]) == {("own", 0): (0, 4)}
            assert connection.log_bounds([]) == {}
            with pytest.raises(TopicGoneError, match="own ends at 4, but 5 was read before"):
                connection.read("own", 5)
            with pytest.raises(TopicGoneError, match="nowhere does not exist"):
                connection.read("nowhere", 0)
            with pytest.raises(ConnectionLostError, match="Partition 0 of nowhere does not exist"):
                connection.write("nowhere", [Record(key=b"a", value=b"a")])
