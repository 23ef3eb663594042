"""The options of ``klamm-kafka``."""

from __future__ import annotations

import pytest

from klamm.dataframes.options import read_options
from klamm.dataframes.positions import EARLIEST, LATEST, Timestamps
from klamm.properties import SettingsError

NEEDED = {"kafka.bootstrap.servers": "a:1, PLAINTEXT://b:2", "subscribe": "orders, payments"}


def test_batch_reads_to_the_end_and_stream_starts_at_latest() -> None:
    batch, stream = (read_options(NEEDED, streaming=streaming) for streaming in (False, True))
    assert (batch.starting, batch.ending, stream.starting) == (EARLIEST, LATEST, LATEST)
    assert batch.topics == ("orders", "payments")
    assert batch.connection.bootstrap_servers == ("a:1", "b:2")


def test_option_names_are_case_insensitive_and_offsets_are_json() -> None:
    options = read_options(
        NEEDED | {"STARTINGOFFSETS": '{"orders":{"0":23,"1":-2}}', "maxrecordsperpartition": "5"}, streaming=False
    )
    assert options.starting == {"orders": {0: 23, 1: -2}}
    assert options.records_per_range == 5


@pytest.mark.parametrize(
    ("wrong", "message"),
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
            {"startingTimestamp": "9", "endingTimestamp": "8"},
            "endingTimestamp=8: before startingTimestamp=9",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders":{"0":9}}',
                "endingOffsetsByTimestamp": '{"orders":{"0":8}}',
            },
            "endingOffsetsByTimestamp: orders-0 ends at 8, before startingOffsetsByTimestamp=9",
        ),
        ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset=earliest: not supported: startingOffsets"),
        ({"kafka.Value.Deserializer": "x"}, "kafka.value.deserializer=x: not supported: values are binary"),
        ({"maxOffsetsPerTrigger": "9223372036854775808"}, "expected a whole number"),
        ({"kafka.default.api.timeout.ms": "2147483648"}, "expected milliseconds, a whole number from 0 to 2147483647"),
        ({"startingOffsets": "latest"}, "a batch would be empty"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest: expected latest"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition=0: expected a whole number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss=maybe: expected true or false"),
        ({"kafka.isolation.level": "clean"}, "kafka.isolation.level=clean: expected read_committed"),
        ({"subscripe": "orders"}, "subscripe: not an option of klamm-kafka; did you mean subscribe"),
        ({"startingOffsets": '{"order":{"0":1}}'}, "startingOffsets: order: not among the topics orders,payments"),
        (
            {"startingOffsets": '{"orders":{"0":5,"1":-1}}'},
            "startingOffsets: orders-1 is -1 .latest.: a batch would be",
        ),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets: orders-0 is -2 .earliest.: expected latest"),
        ({"startingTimestamp": "soon"}, "startingTimestamp=soon: expected milliseconds since the epoch"),
        ({"endingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "endingOffsetsByTimestamp=.*: expected JSON of milli"),
        ({"startingOffsetsByTimestamp": '{"order":{"0":1}}'}, "startingOffsetsByTimestamp: order: not among"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "Strategy=earliest: expected error or latest"),
        ({"subscribePattern": "o.*"}, "subscribe, subscribePattern: expected exactly one of"),
        ({"assign": '{"orders":[0]}'}, "subscribe, assign: expected exactly one of"),
        ({"minPartitions": "0"}, "minPartitions=0: expected a whole number"),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"}, "minOffsetsPerTrigger=3: expected at most max"),
        ({"maxTriggerDelay": "1 week"}, "maxTriggerDelay=1 week: expected a duration such as 500ms"),
        ({"kafka.securty.protocol": "SSL"}, "kafka.securty.protocol: not a property .*did you mean security.protocol"),
        ({"kafka.ssl.magic": "1"}, "kafka.ssl.magic: not a property of Kafka's clients"),
        ({"kafka.request.timeout.ms": "soon"}, "kafka.request.timeout.ms=soon: expected milliseconds"),
        ({"kafka.security.protocol": "X"}, "kafka.security.protocol=X: expected one of PLAINTEXT"),
        ({"kafka.security.protocol": "PIGEON"}, "security.protocol=PIGEON"),
    ],
)
def test_invalid_option_error_names_expected_values(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("{", r"\{")):
        read_options(NEEDED | wrong, streaming=False)


def test_empty_ranges_and_special_offsets_are_accepted() -> None:
    for start, end in ((20, 20), (20, -1), (-2, -1), (-2, 0)):
        both = {"startingOffsets": f'{{"orders":{{"0":{start}}}}}', "endingOffsets": f'{{"orders":{{"0":{end}}}}}'}
        read_options(NEEDED | both, streaming=False)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"subscribePattern": " ^(or|x)d "}, ((), ["orders", "xd"], None)),
        ({"subscribePattern": "R"}, ((), [], None)),
        ({"assign": '{"b":[2,0,0],"a":[1]}'}, (("a", "b"), None, {"a": (1,), "b": (0, 2)})),
        ({"subscribePattern": ""}, "subscribePattern: expected a regular expression"),
        ({"subscribePattern": "or)|(x"}, r"subscribePattern=or\)\|\(x: expected a regular expression"),
        ({"subscribePattern": "or("}, r"subscribePattern=or\(: expected a regular expression"),
        ({"assign": "orders"}, "assign=orders: expected JSON of partitions by topic"),
        ({"assign": '{"orders":[]}'}, "expected JSON of partitions by topic"),
        ({"assign": '{"orders":[-1]}'}, "expected JSON of partitions by topic"),
        ({"assign": '{"orders":"012"}'}, "expected JSON of partitions by topic"),
        ({"assign": '{"orders":{"0":23}}'}, "expected JSON of partitions by topic"),
        ({}, "topics: expected exactly one of subscribe, subscribePattern, assign"),
    ],
)
def test_exactly_one_option_selects_topics(selection: dict[str, str], expected: object) -> None:
    query = {"kafka.bootstrap.servers": "a:1"} | selection
    if isinstance(expected, str):
        with pytest.raises(SettingsError, match=expected):
            read_options(query, streaming=True)
        return
    options = read_options(query, streaming=True)
    matched = options.pattern and [*filter(options.pattern.fullmatch, ("orders", "my-orders", "xd"))]
    assert (options.topics, matched, options.assigned) == expected


def test_timestamps_take_precedence_over_offsets() -> None:
    both = {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"orders":{"0":7}}'}
    assert read_options(NEEDED | both, streaming=True).starting == Timestamps({"orders": {0: 7}}, False)
    more = {"startingTimestamp": "9", "startingOffsetsByTimestampStrategy": "LATEST"}
    assert read_options(NEEDED | both | more, streaming=True).starting == Timestamps(9, True)
    assert read_options(NEEDED | {"endingTimestamp": "9"}, streaming=False).ending == Timestamps(9, True)


def test_options_without_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    more = {"kafka.group.id": "g", "kafka.vendor.extension": "x", "kafka.ssl.protocol": "TLS", "maxTriggerDelay": "1m"}
    assert read_options(NEEDED | more, streaming=False).trigger_delay_s == 60
    assert caplog.messages == [
        "maxTriggerDelay: without effect, because the query is a batch",
        "kafka.group.id, kafka.vendor.extension: without effect on klamm-kafka",
    ]


@pytest.mark.parametrize("custom", ["ssl.engine.factory.class", "sasl.login.callback.handler.class"])
def test_keys_of_a_custom_class_are_logged_and_not_rejected(custom: str, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka passes all properties of a client to its custom classes, so these may have any name."""
    own = f"kafka.{custom.removesuffix('class')}foo"
    read_options(NEEDED | {f"kafka.{custom}": "com.example.Own", own: "1"}, streaming=False)
    assert caplog.messages == [f"kafka.{custom}, {own}: without effect on klamm-kafka"]
    with pytest.raises(SettingsError, match=f"{own}: not a property of Kafka's clients"):
        read_options(NEEDED | {own: "1"}, streaming=False)


def test_ending_offsets_of_a_stream_are_rejected() -> None:
    for name, value in (("endingOffsets", "latest"), ("endingOffsetsByTimestamp", "{}"), ("endingTimestamp", "1")):
        with pytest.raises(SettingsError, match=f"{name}: a stream has no end"):
            read_options(NEEDED | {name: value}, streaming=True)


def test_options_of_sparks_source_without_effect_are_accepted() -> None:
    """A query moves from one source to the other by its format's name."""
    more = {
        "includeHeaders": "true",
        "fetchOffset.numRetries": "4",
        "groupIdPrefix": "x",
        "kafkaConsumer.pollTimeoutMs": "512",
    }
    assert read_options(NEEDED | more, streaming=False) == read_options(NEEDED, streaming=False)
