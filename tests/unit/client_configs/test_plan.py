"""Planning of AlterClientConfigs: atomic per entity, entities independent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import AlterEntry, AlterOp, ClientConfigChange, EntryPlan
from klamm.protocol.errors import ErrorCode
from tests.support.client_configs import plan_alter

if TYPE_CHECKING:
    from collections.abc import Sequence

ALICE = ClientConfigEntity.of_user("alice")
NOTHING: dict[ClientConfigEntity, dict[str, str]] = {}


def put(key: str, value: str) -> AlterOp:
    return AlterOp(key=key, value=value, remove=False)


def remove(key: str, value: str = "") -> AlterOp:
    return AlterOp(key=key, value=value, remove=True)


def alter(*ops: AlterOp, user: str | None = "alice") -> AlterEntry:
    return AlterEntry(components=(("user", user),), ops=ops)


def plan(*entries: AlterEntry, current: dict[ClientConfigEntity, dict[str, str]] | None = None) -> Sequence[EntryPlan]:
    return plan_alter(entries, current or NOTHING, BrokerLimits())


def codes(plans: Sequence[EntryPlan]) -> list[ErrorCode]:
    return [ErrorCode.NONE if plan.error is None else plan.error.error_code for plan in plans]


def test_alter_sets_a_value() -> None:
    """K649-49: Remove=false sets key to value for the entity; Remove=true removes it."""
    (alice,) = plan(alter(put("acks", "all")))
    assert alice == EntryPlan(changes=(ClientConfigChange(entity=ALICE, name="acks", old=None, new="all"),))


def test_alter_removes_a_value_and_ignores_value_field() -> None:
    """K649-15: Op.Value is a non-null string even for Remove; it is ignored then (clients send "").

    K649-49: Remove=false sets key to value for the entity; Remove=true removes it.
    """
    (alice,) = plan(alter(remove("acks", "junk")), current={ALICE: {"acks": "1"}})
    assert alice.changes == (ClientConfigChange(entity=ALICE, name="acks", old="1", new=None),)


def test_removing_an_unset_or_unknown_key_succeeds() -> None:
    """K649-58: Removing a key that is not set (even an unknown key) succeeds."""
    assert codes(plan(alter(remove("acks"), remove("no.such.key")))) == [ErrorCode.NONE]


def test_invalid_op_rejects_its_entry_only() -> None:
    """K649-59: One bad op -> nothing of that entry is applied; entries are independent."""
    for ops in ((put("acks", "all"), put("acks2", "x")), (put("session.timeout.ms", "1"), put("acks", "all"))):
        alice, bob = plan(alter(*ops), alter(put("acks", "1"), user="bob"))
        assert alice.error is not None
        assert alice.changes == ()
        assert [change.new for change in bob.changes] == ["1"]


def test_entry_without_user_is_rejected_alone() -> None:
    """K649-50: An entry without a user component gets 42; other entries are still processed."""
    orphan = AlterEntry(components=(("client-id", "app1"),), ops=(put("acks", "all"),))
    assert codes(plan(orphan, alter(put("acks", "all"), user="bob"))) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


def test_duplicate_key_in_entry_is_rejected() -> None:
    """K649-60: Same key twice in an entry, or same entity twice in a request -> 42 for it."""
    assert codes(plan(alter(put("acks", "all"), remove("acks")))) == [ErrorCode.INVALID_REQUEST]


def test_duplicate_entity_in_request_is_rejected() -> None:
    """K649-60: Same key twice in an entry, or same entity twice in a request -> 42 for it."""
    plans = plan(alter(put("acks", "all")), alter(put("acks", "1"), user="bob"), alter(remove("acks")))
    assert codes(plans) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_heartbeat_and_session_are_not_compared_with_each_other() -> None:
    """K649-57: No broker-side cross check heartbeat < session."""
    ops = (put("session.timeout.ms", "6000"), put("heartbeat.interval.ms", "9000"))
    assert codes(plan(alter(*ops))) == [ErrorCode.NONE]


def test_entry_without_ops_succeeds() -> None:
    assert plan(alter()) == [EntryPlan()]
