"""The options of ``klamm-kafka``."""

from __future__ import annotations

import pytest

from klamm.dataframes.options import EARLIEST, LATEST, read_options
from klamm.properties import SettingsError

NEEDED = {"kafka.bootstrap.servers": "a:1, PLAINTEXT://b:2", "subscribe": "orders, payments"}


def test_a_batch_reads_all_there_is_and_a_stream_what_comes() -> None:
    batch, stream = (read_options(NEEDED, streaming=streaming) for streaming in (False, True))
    assert (batch.starting, batch.ending, stream.starting) == (EARLIEST, LATEST, LATEST)
    assert batch.topics == ("orders", "payments")
    assert batch.connection.bootstrap_servers == ("a:1", "b:2")


def test_names_may_come_in_any_case_and_offsets_as_json() -> None:
    options = read_options(
        NEEDED | {"STARTINGOFFSETS": '{"orders":{"0":23,"1":-2}}', "maxrecordsperpartition": "5"}, streaming=False
    )
    assert options.starting == {"orders": {0: 23, 1: -2}}
    assert options.records_per_range == 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"subscribe": " "}, "subscribe: expected"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers: expected host:port"),
        ({"kafka.bootstrap.servers": "nowhere"}, "kafka.bootstrap.servers=nowhere: expected host:port"),
        ({"startingOffsets": "soon"}, "startingOffsets=soon: expected earliest, latest or JSON"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "-2 means earliest"),
        ({"startingOffsets": '{"orders":{"0":1.5}}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"orders":{"0":true}}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"orders":{"0":1e999}}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"orders":{"0":9223372036854775808}}'}, "expected earliest, latest or JSON"),
        (
            {"startingOffsets": '{"orders":{"0":30}}', "endingOffsets": '{"orders":{"0":20}}'},
            "endingOffsets: orders-0 ends at 20, before startingOffsets=30",
        ),
        (
            {"startingOffsets": '{"orders":{"0":-1}}', "endingOffsets": '{"orders":{"0":20}}'},
            "endingOffsets: orders-0 ends at 20, before startingOffsets=-1",
        ),
        ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset=earliest: not supported: startingOffsets"),
        ({"kafka.Value.Deserializer": "x"}, "kafka.value.deserializer=x: not supported: values are binary"),
        ({"maxOffsetsPerTrigger": "9223372036854775808"}, "expected a number of records"),
        ({"kafka.default.api.timeout.ms": "2147483648"}, "expected milliseconds, a whole number from 0 to 2147483647"),
        ({"startingOffsets": "latest"}, "a batch would be empty"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest: expected latest"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition=0: expected a number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss=maybe: expected true or false"),
        ({"kafka.isolation.level": "clean"}, "kafka.isolation.level=clean: expected read_committed"),
        ({"subscripe": "orders"}, "subscripe: not an option of klamm-kafka; expected subscribe, startingOffsets"),
        ({"startingOffsets": '{"order":{"0":1}}'}, "startingOffsets: order: not among subscribe=orders,payments"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets=earliest"),
        ({"kafka.request.timeout.ms": "soon"}, "kafka.request.timeout.ms=soon: expected milliseconds"),
        ({"kafka.security.protocol": "X"}, "kafka.security.protocol=X: expected one of PLAINTEXT"),
        ({"kafka.security.protocol": "PIGEON"}, "security.protocol=PIGEON"),
    ],
)
def test_what_cannot_be_is_named_with_what_may_be(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said.replace("{", r"\{")):
        read_options(NEEDED | wrong, streaming=False)


def test_an_empty_range_and_positions_without_an_order_are_taken() -> None:
    for start, end in ((20, 20), (20, -1), (-1, -1), (-2, 0)):
        both = {"startingOffsets": f'{{"orders":{{"0":{start}}}}}', "endingOffsets": f'{{"orders":{{"0":{end}}}}}'}
        read_options(NEEDED | both, streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(SettingsError, match="a stream has no end"):
        read_options(NEEDED | {"endingOffsets": "latest"}, streaming=True)


def test_options_of_sparks_own_source_that_change_nothing_are_taken() -> None:
    """A query moves from one source to the other by its format's name."""
    more = {"includeHeaders": "true", "minPartitions": "4", "groupIdPrefix": "x", "kafkaConsumer.pollTimeoutMs": "512"}
    assert read_options(NEEDED | more, streaming=False) == read_options(NEEDED, streaming=False)
