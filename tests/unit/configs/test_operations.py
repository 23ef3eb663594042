"""SET, DELETE, APPEND, SUBTRACT, and the replacing AlterConfigs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.configs.layers import BrokerLayers
from klamm.configs.operations import (
    AlterOperation,
    ConfigDelta,
    apply_changes,
    plan_incremental_alter,
    plan_legacy_alter,
)
from klamm.configs.topics import TopicSchema
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError, KafkaApiError
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.types import ConfigOperation

if TYPE_CHECKING:
    from collections.abc import Mapping

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
CLEANUP = "cleanup.policy"
THROTTLED = "leader.replication.throttled.replicas"


def operation(name: str, config_operation: int, value: str | None = None) -> AlterOperation:
    return IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=config_operation, value=value)


def topic_schema(layers: BrokerLayers | None = None) -> TopicSchema:
    return TopicSchema(topic="t", layers=layers or BrokerLayers())


def after(
    current: Mapping[str, str], *operations: AlterOperation, layers: BrokerLayers | None = None
) -> dict[str, str]:
    return apply_changes(current, plan_incremental_alter(current, operations, topic_schema(layers)))


def test_set_stores_the_value() -> None:
    """K339-06: SET stores the value for the key."""
    assert after({}, operation("flush.ms", SET, "5")) == {"flush.ms": "5"}


def test_set_to_the_default_value_makes_it_the_topics_own() -> None:
    """K339-06: SET stores the value for the key."""
    assert after({}, operation("index.interval.bytes", SET, "4096")) == {"index.interval.bytes": "4096"}


def test_unnamed_keys_keep_their_values() -> None:
    """K339-22: Keys not named in the request keep their values, including keys the caller cannot read."""
    assert after({"flush.ms": "5"}, operation("segment.ms", SET, "7")) == {"flush.ms": "5", "segment.ms": "7"}


@pytest.mark.parametrize("kind", [SET, APPEND, SUBTRACT, 9])
def test_null_value_is_an_invalid_request(kind: int) -> None:
    """K339-07: SET with null value fails the resource with 42 and changes nothing."""
    with pytest.raises(InvalidRequestError) as rejected:
        after({}, operation("flush.ms", SET, "5"), operation(CLEANUP, kind), operation("", SET))
    assert rejected.value.error_message == "Null value not supported for : cleanup.policy, "


@pytest.mark.parametrize("value", [None, "not a number"])
def test_delete_removes_value_and_ignores_value_field(value: str | None) -> None:
    """K339-08: DELETE removes the override so the effective value falls back to the default; the value field is
    ignored, null or not.
    """
    assert after({"flush.ms": "5"}, operation("flush.ms", DELETE, value)) == {}


@pytest.mark.parametrize("name", ["flush.ms", "no.such.config", ""])
def test_delete_of_unset_config_succeeds(name: str) -> None:
    """K339-09: DELETE of a key that is not set succeeds, no change.

    K339-35: SET of an unknown topic key -> 40; DELETE of an unknown key -> success no-op.
    """
    assert plan_incremental_alter({}, [operation(name, DELETE)], topic_schema()) == ()


def test_append_adds_at_the_end_of_the_topics_own_list() -> None:
    """K339-10: APPEND adds the given element(s) to a list key's current value, order kept, new ones at the end."""
    assert after({CLEANUP: "compact"}, operation(CLEANUP, APPEND, "delete")) == {CLEANUP: "compact,delete"}


def test_append_to_an_unset_list_starts_from_the_built_in_default() -> None:
    """K339-11: APPEND on an unset list key starts from the default in force (what describe shows: dynamic broker,
    static or built-in default).
    """
    assert after({}, operation(CLEANUP, APPEND, "compact")) == {CLEANUP: "delete,compact"}


def test_append_to_an_unset_list_starts_from_the_clusters_default_when_there_is_one() -> None:
    """K339-11: a topic that compacts does not begin to delete because somebody appends compact."""
    layers = BrokerLayers(cluster={"log.cleanup.policy": "compact"}, static={"log.cleanup.policy": "delete"})
    assert after({}, operation(CLEANUP, APPEND, "compact"), layers=layers) == {CLEANUP: "compact"}


def test_append_of_default_element_sets_topic_value() -> None:
    """K339-11: APPEND on an unset list key starts from the default in force (what describe shows: dynamic broker,
    static or built-in default).

    K339-12: Value of APPEND/SUBTRACT is a comma list; elements already present are not added twice.
    """
    assert after({}, operation(CLEANUP, APPEND, "delete")) == {CLEANUP: "delete"}


def test_append_value_is_a_list_without_duplicates() -> None:
    """K339-12: Value of APPEND/SUBTRACT is a comma list; elements already present are not added twice."""
    assert after({THROTTLED: "0:1"}, operation(THROTTLED, APPEND, "2:1,0:1,2:1,1:1")) == {THROTTLED: "0:1,2:1,1:1"}


def test_blanks_around_elements_are_dropped() -> None:
    """K339-12: what a description shows can be subtracted."""
    appended = after({CLEANUP: "delete"}, operation(CLEANUP, APPEND, " compact "))
    assert appended == {CLEANUP: "delete,compact"}
    assert after(appended, operation(CLEANUP, SUBTRACT, "compact")) == {CLEANUP: "delete"}
    assert after({CLEANUP: " compact , delete "}, operation(CLEANUP, SUBTRACT, "compact")) == {CLEANUP: "delete"}


def test_subtract_removes_elements_and_ignores_missing_ones() -> None:
    """K339-13: SUBTRACT removes the given elements; elements not present are ignored, success."""
    assert after({THROTTLED: "0:1,1:1,2:1"}, operation(THROTTLED, SUBTRACT, "1:1,9:9")) == {THROTTLED: "0:1,2:1"}
    assert plan_incremental_alter({CLEANUP: "compact"}, [operation(CLEANUP, SUBTRACT, "nope")], topic_schema()) == ()
    assert plan_incremental_alter({CLEANUP: "compact"}, [operation(CLEANUP, SUBTRACT, "")], topic_schema()) == ()


def test_subtract_of_every_element_leaves_an_empty_list() -> None:
    """K339-14: SUBTRACT of every element leaves an explicit empty list, not the default."""
    assert after({THROTTLED: "0:1"}, operation(THROTTLED, SUBTRACT, "0:1")) == {THROTTLED: ""}


def test_append_to_an_empty_list_does_not_restore_the_default() -> None:
    """K339-14: SUBTRACT of every element leaves an explicit empty list, not the default."""
    assert after({CLEANUP: ""}, operation(CLEANUP, APPEND, "compact")) == {CLEANUP: "compact"}


def test_subtract_from_an_unset_list_starts_from_the_default() -> None:
    """K339-15: SUBTRACT on an unset list key starts from the default."""
    assert after({}, operation(CLEANUP, SUBTRACT, "delete")) == {CLEANUP: ""}
    assert after({}, operation(THROTTLED, SUBTRACT, "0:1")) == {THROTTLED: ""}


@pytest.mark.parametrize("kind", [APPEND, SUBTRACT])
@pytest.mark.parametrize("name", ["retention.ms", "compression.type", "no.such.config"])
def test_append_and_subtract_need_a_list(kind: ConfigOperation, name: str) -> None:
    """K339-16: APPEND or SUBTRACT on a key that is not a list fails the resource with 42."""
    with pytest.raises(InvalidRequestError) as rejected:
        after({}, operation(name, kind, "1"))
    assert rejected.value.error_message == f"Can't {kind.name} to key {name} because its type is not LIST."


@pytest.mark.parametrize("second", [SET, DELETE, APPEND, SUBTRACT])
def test_duplicate_key_is_an_invalid_request(second: ConfigOperation) -> None:
    """K339-17: The same key twice in one resource fails that resource with 42, whatever the ops."""
    with pytest.raises(InvalidRequestError) as rejected:
        after({}, operation(CLEANUP, SET, None), operation(CLEANUP, second, "compact"))
    assert rejected.value.error_message == "Error due to duplicate config keys"


@pytest.mark.parametrize("bad_first", [True, False])
def test_invalid_operation_rejects_all_operations_of_resource(bad_first: bool) -> None:
    """K339-18: All-or-nothing per resource: any bad op means no op of that resource is applied."""
    good, bad = operation("flush.ms", SET, "5"), operation("segment.ms", SET, "bad")
    with pytest.raises(InvalidConfigError):
        after({}, *((bad, good) if bad_first else (good, bad)))


@pytest.mark.parametrize("kind", [4, -1, 127])
def test_unknown_operation_is_an_invalid_request(kind: int) -> None:
    """K339-30: Unknown op byte (e.g. 9) fails that resource with 42, neighbours are applied."""
    with pytest.raises(InvalidRequestError) as rejected:
        after({}, operation("flush.ms", kind, "5"))
    assert rejected.value.error_message == f"Unknown operations type {kind}"


def test_empty_operations_change_nothing() -> None:
    """K339-39: A resource with zero ops succeeds as a no-op."""
    assert plan_incremental_alter({"flush.ms": "5"}, [], topic_schema()) == ()


def test_all_four_operations_apply_to_one_resource() -> None:
    """K339-04: Op ids: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT."""
    current = {"flush.ms": "77", CLEANUP: "compact", THROTTLED: "0:1,1:1"}
    changes = plan_incremental_alter(
        current,
        [
            operation("flush.messages", SET, "9"),
            operation("flush.ms", DELETE),
            operation(CLEANUP, APPEND, "delete"),
            operation(THROTTLED, SUBTRACT, "0:1"),
        ],
        topic_schema(),
    )
    assert changes == (
        ConfigDelta(name="flush.messages", value="9"),
        ConfigDelta(name="flush.ms", value=None),
        ConfigDelta(name=CLEANUP, value="compact,delete"),
        ConfigDelta(name=THROTTLED, value="1:1"),
    )


def test_operations_of_a_huge_list_are_decided_quickly() -> None:
    """A list of a million bytes is no reason to stall: the work grows with its length, not with its square."""
    replicas = ",".join(f"{partition}:1" for partition in range(100_000))
    with pytest.raises(InvalidConfigError, match="exceeds the maximum value size"):
        after({THROTTLED: replicas}, operation(THROTTLED, APPEND, f"100000:1,{replicas}"))
    grown = {THROTTLED: f"{replicas},100000:1"}
    assert after(grown, operation(THROTTLED, SUBTRACT, replicas)) == {THROTTLED: "100000:1"}


def test_legacy_alter_replaces_all_configs() -> None:
    """K339-25: Old AlterConfigs keeps replace-all semantics: keys left out are removed."""
    changes = plan_legacy_alter({"flush.ms": "5", "segment.ms": "7"}, [("segment.ms", "8")], topic_schema())
    assert changes == (ConfigDelta(name="segment.ms", value="8"), ConfigDelta(name="flush.ms", value=None))


def test_legacy_alter_rejects_null_value_and_duplicate_key() -> None:
    """K339-25: Old AlterConfigs keeps replace-all semantics: keys left out are removed."""
    with pytest.raises(InvalidRequestError, match="Null value not supported for : flush"):
        plan_legacy_alter({}, [("flush.ms", None)], topic_schema())
    with pytest.raises(InvalidRequestError, match="Error due to duplicate config keys"):
        plan_legacy_alter({}, [("flush.ms", "5"), ("flush.ms", "6")], topic_schema())


# A small world in which every operation can be tried on every key, wrong ones too.
NAMES = st.sampled_from(["flush.ms", "retention.ms", CLEANUP, THROTTLED, "no.such.config"])
VALUES = st.sampled_from(["5", "-7", "x", "", "compact", "delete", "compact,delete", "0:1", "1:1,0:1", " compact"])
OPERATIONS = st.builds(operation, NAMES, st.integers(min_value=0, max_value=4), st.none() | VALUES)
REQUESTS = st.lists(st.lists(OPERATIONS, max_size=4), max_size=8)


@settings(deadline=None)
@given(REQUESTS)
def test_request_equals_its_operations_applied_one_by_one(
    requests: list[list[AlterOperation]],
) -> None:
    """K339-18, K339-23: a request that is accepted is the same as its operations in as many requests."""
    together: dict[str, str] = {}
    for request in requests:
        try:
            decided = after(together, *request)
        except KafkaApiError:
            continue  # all or nothing: nothing
        apart = dict(together)
        for single in request:
            apart = after(apart, single)
        assert decided == apart
        together = decided


@settings(deadline=None)
@given(REQUESTS)
def test_plan_keeps_its_arguments_and_unnamed_keys(
    requests: list[list[AlterOperation]],
) -> None:
    """K339-21: validate_only=true validates (same errors) but changes nothing.

    K339-22: Keys not named in the request keep their values, including keys the caller cannot read.
    """
    current = {"segment.ms": "1000", CLEANUP: "compact"}
    for request in requests:
        try:
            changes = plan_incremental_alter(current, request, topic_schema())
        except KafkaApiError:
            continue
        assert current == {"segment.ms": "1000", CLEANUP: "compact"}
        assert {change.name for change in changes} <= {single.name for single in request}


@settings(deadline=None)
@given(st.lists(VALUES, max_size=5), st.lists(VALUES, max_size=5))
def test_appends_of_different_writers_all_survive(first: list[str], second: list[str]) -> None:
    """K339-23: whatever the order, every element that was appended is there."""
    current: dict[str, str] = {}
    for value in (*first, *second):
        try:
            current = after(current, operation(CLEANUP, APPEND, value))
        except KafkaApiError:
            continue
    appended = {
        e.strip()
        for v in (*first, *second)
        for e in v.split(",")
        if v.strip() in {"compact", "delete", "compact,delete"}
    }
    assert appended <= set(current.get(CLEANUP, "").split(","))


@pytest.mark.parametrize("value", ["x" * 32_768, "é" * 16_384, "\U0001f600" * 8_192])
def test_value_above_maximum_size_is_rejected_by_every_operation(value: str) -> None:
    # given: lists whose elements make the same length
    half = ",".join(f"{number}:1" for number in range(3_000))
    other = ",".join(f"{number}:2" for number in range(3_000))
    # when, then
    rejection = "exceeds the maximum value size of 32767 bytes"
    with pytest.raises(InvalidConfigError, match=rejection):
        plan_incremental_alter({}, [operation("flush.ms", SET, value)], topic_schema())
    with pytest.raises(InvalidConfigError, match=rejection):
        plan_legacy_alter({}, [("flush.ms", value)], topic_schema())
    with pytest.raises(InvalidConfigError, match=rejection):
        plan_incremental_alter({THROTTLED: half}, [operation(THROTTLED, APPEND, other)], topic_schema())


def test_longest_allowed_value_is_accepted() -> None:
    # given: 4,681 elements of six characters and their commas
    longest = ",".join(f"{number:04}:1" for number in range(4_681))
    assert len(longest) == 32_766
    # when
    changes = plan_incremental_alter({}, [operation(THROTTLED, SET, longest)], topic_schema())
    # then
    assert changes == (ConfigDelta(name=THROTTLED, value=longest),)
