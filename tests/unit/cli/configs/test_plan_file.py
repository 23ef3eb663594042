"""What a file of topics may say."""

from __future__ import annotations

import pytest

from klamm.cli.configs.plan_file import DeclaredTopic, parse_document
from klamm.properties import SettingsError


def test_topics_keep_file_order_with_kafka_values() -> None:
    # given
    text = """
        topics:
          orders:
            partitions: 6
            replication_factor: 3
            configs:
              retention.ms: 604800000
              cleanup.policy: [compact, delete]
              preallocate: true
              min.cleanable.dirty.ratio: 0.5
          audit:
    """
    # when
    orders, audit = parse_document(text)
    # then
    assert (orders.name, orders.partitions, orders.replication_factor) == ("orders", 6, 3)
    assert dict(orders.configs) == {
        "retention.ms": "604800000",
        "cleanup.policy": "compact,delete",
        "preallocate": "true",
        "min.cleanable.dirty.ratio": "0.5",
    }
    assert audit == DeclaredTopic(name="audit")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file: None: expected a mapping with topics"),
        ("topic: {}", "the file: unknown key topic: expected one of topics; did you mean topics?"),
        ("topics: [a]", "topics: ['a']: expected a mapping"),
        ("topics: {1: {}}", "topics: key 1: expected a string"),
        ("topics: {t: {partition: 1}}", "topics.t: unknown key partition: expected one of partitions, replication_fac"),
        ("topics: {t: {partitions: six}}", "topics.t.partitions: 'six': expected a whole number from 1 to 2147483647"),
        ("topics: {t: {partitions: 0}}", "topics.t.partitions: 0: expected a whole number"),
        ("topics: {t: {partitions: true}}", "topics.t.partitions: True: expected a whole number"),
        (
            "topics: {t: {replication_factor: 40000}}",
            "replication_factor: 40000: expected a whole number from 1 to 32767",
        ),
        ("topics: {t: {configs: [a]}}", "topics.t.configs: ['a']: expected a mapping"),
        (
            "topics: {t: {configs: {a: }}}",
            "topics.t.configs.a: None: expected a string, a number, true, false or a list",
        ),
        ("topics: {t: {configs: {a: {b: c}}}}", "topics.t.configs.a: {'b': 'c'}: expected a string"),
        ("topics:\n  t:\n  t:\n", "line 3: t: is given twice, expected once"),
        ("topics: {t: {configs: {a: 1, a: 2}}}", "line 1: a: is given twice, expected once"),
        ("topics: {[a]: {}}", "expected a name as the key"),
        ("topics: {t: {partitions: 010}}", "topics.t.partitions: '010': expected a whole number"),
        ("topics: {t: {partitions: " + "9" * 5_000 + "}}", "expected a whole number"),
        ("[" * 20_000, "too many levels"),
        ("topics: {", "no YAML: "),
        ("topics: !!python/object:os.system {}", "no YAML: "),
    ],
)
def test_invalid_file_is_rejected_with_key_and_allowed_values(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_document(text)
    assert complaint in str(refused.value)


def test_numbers_keep_their_spelling() -> None:
    (topic,) = parse_document("topics: {t: {configs: {a: 010, b: 1:30, c: 0x10, d: 1_000, e: -1, f: +5}}}")
    assert dict(topic.configs) == {"a": "010", "b": "1:30", "c": "0x10", "d": "1_000", "e": "-1", "f": "5"}


def test_durations_and_sizes_may_have_units() -> None:
    (topic,) = parse_document("topics: {t: {configs: {retention.ms: 7d, segment.bytes: 1GiB, flush.ms: 7 GiB}}}")
    assert dict(topic.configs) == {"retention.ms": "604800000", "segment.bytes": "1073741824", "flush.ms": "7 GiB"}


def test_yaml_merge_key_reuses_topic() -> None:
    topics = parse_document("""
        topics:
          orders: &usual
            partitions: 6
            configs: {retention.ms: 5}
          audit:
            <<: *usual
            partitions: 1
    """)
    assert [(topic.partitions, dict(topic.configs)) for topic in topics] == [
        (6, {"retention.ms": "5"}),
        (1, {"retention.ms": "5"}),
    ]
