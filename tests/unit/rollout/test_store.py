"""The records of roll-outs: attempts to write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from klamm.gateway.upstream.internal_topic import InternalTopic, TransactionalTopic
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.protocol.errors import ErrorCode
from klamm.rollout.record import RolloutRecord, Wave, begun
from klamm.rollout.store import RolloutStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.protocol.records import Record


def test_record_is_sent_again_until_it_is_always_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE]

    def reject(_: TransactionalTopic, records: Mapping[str, Sequence[Record]]) -> None:
        raise RecordsRejectedError(next(iter(records)), [codes.pop(0)])

    def nothing(_: object, position: int = 0) -> tuple[list[Record], int]:
        return [], position

    monkeypatch.setattr(InternalTopic, "load", nothing)
    monkeypatch.setattr(TransactionalTopic, "take_over", nothing)
    monkeypatch.setattr(TransactionalTopic, "commit", reject)
    admin: Any = None
    rollouts = RolloutStore(ConnectionSettings.of(("127.0.0.1:1",), {}, "test"), admin)
    wave = Wave(name="1", settings={"TOPIC:a": {"k": "1"}})
    record = begun(RolloutRecord(id="1", waves=(wave,), bake_ms=1, check_ms=1, guards=(), runner="r"), at_ms=0)
    # when
    with pytest.raises(RecordsRejectedError, match="MESSAGE_TOO_LARGE"):
        rollouts.replace(record, record)
    rollouts.close()
    # then
    assert codes == [ErrorCode.NONE]
