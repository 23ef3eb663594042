"""The records of roll-outs: attempts to write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from klamm.gateway.upstream.internal_topic import InternalTopic, TransactionalTopic
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.protocol.errors import ErrorCode
from klamm.rollout import store
from klamm.rollout.record import RolloutRecord, Wave, begun
from klamm.rollout.store import RolloutStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.protocol.records import Record


@pytest.mark.parametrize(
    ("code", "is_final"), [(ErrorCode.MESSAGE_TOO_LARGE, True), (ErrorCode.NOT_ENOUGH_REPLICAS, False)]
)
def test_record_that_is_always_rejected_is_sent_once(
    code: ErrorCode, is_final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    def reject(_: TransactionalTopic, records: Mapping[str, Sequence[Record]]) -> None:
        nonlocal attempts
        attempts += 1
        raise RecordsRejectedError(next(iter(records)), [code])

    def nothing(_: object, position: int = 0) -> tuple[list[Record], int]:
        return [], position

    monkeypatch.setattr(store, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(InternalTopic, "load", nothing)
    monkeypatch.setattr(TransactionalTopic, "take_over", nothing)
    monkeypatch.setattr(TransactionalTopic, "commit", reject)
    admin: Any = None
    rollouts = RolloutStore(ConnectionSettings.of(("127.0.0.1:1",), {}, "test"), admin)
    wave = Wave(name="1", settings={"TOPIC:a": {"k": "1"}})
    record = begun(RolloutRecord(id="1", waves=(wave,), bake_ms=1, check_ms=1, guards=(), runner="r"), at_ms=0)
    # when
    with pytest.raises(RecordsRejectedError, match=code.name):
        rollouts.replace(record, record)
    rollouts.close()
    # then
    assert (attempts == 1) is is_final
