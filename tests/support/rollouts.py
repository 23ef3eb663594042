"""A cluster, records and guards of roll-outs in memory, which can be killed at any call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from klamm.kafka_client.errors import ConnectionLostError
from klamm.rollout.entities import EntityValues, RejectedSettingsError
from klamm.rollout.guards import GuardOutcome, GuardResult
from klamm.rollout.record import from_document, to_document
from klamm.rollout.runner import Runner
from klamm.rollout.store import StaleRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from klamm.protocol.errors import KafkaApiError
    from klamm.rollout.guards import Guard
    from klamm.rollout.record import RolloutRecord, Values


class KilledError(BaseException):
    """The process that drives the roll-out is killed. No code of it catches this."""


@dataclass(kw_only=True, eq=False)
class RolloutWorld:
    """What outlives the process: the values in the cluster and the record, with a clock."""

    configs: dict[str, dict[str, str | None]]
    record: RolloutRecord
    outcomes: Iterator[GuardOutcome]
    """Outcome of each evaluation of a guard."""
    rejects: dict[str, KafkaApiError] = field(default_factory=dict)
    policy: Callable[[Mapping[str, str | None]], Mapping[str, str | None]] = lambda _: {}
    """Values that a policy stores in place of settings, or beside them."""
    down: set[str] = field(default_factory=set)
    """Entities that can neither be read nor written."""
    at_ms: int = 0
    calls_left: int = 10**9
    """Calls until the process is killed, before or after the effect of the last one."""
    is_killed_before: bool = True
    touched: list[str] = field(default_factory=list)
    """Entities in the order in which they were written."""
    on_call: Callable[[str], None] = lambda _: None
    """What others do before a call of this name."""

    def runner(self, *, ends_unrestored: bool = False) -> Runner:
        return Runner(self, self, self, now_ms=lambda: self.at_ms, ends_unrestored=ends_unrestored)

    def _call(self, name: str, effect: Callable[[], None] = lambda: None) -> None:
        self.on_call(name)
        self.calls_left -= 1
        if self.calls_left == 0 and self.is_killed_before:
            raise KilledError
        effect()
        if self.calls_left == 0:
            raise KilledError

    # -- the cluster

    def values(self, entities: Collection[str]) -> EntityValues:
        self._call("values")
        return EntityValues(
            values={
                name: dict(self.configs[name]) for name in entities if name in self.configs and name not in self.down
            },
            unreadable={name: ConnectionLostError("down") for name in sorted(self.down.intersection(entities))},
        )

    def write(self, settings: Values) -> Values:
        settings = {
            entity: values if entity in self.rejects else {**values, **self.policy(values)}
            for entity, values in settings.items()
        }
        self._call("write", lambda: self._write(settings))
        return settings

    def _write(self, settings: Values) -> None:
        rejects = {**self.rejects, **{name: ConnectionLostError("down") for name in self.down}}
        for entity, values in settings.items():
            if entity in rejects or entity not in self.configs:
                continue
            self.touched.append(entity)
            self.configs[entity].update(values)
        if wrong := {entity: error for entity, error in rejects.items() if entity in settings}:
            raise RejectedSettingsError(wrong, settings)

    # -- the records

    def replace(self, old: RolloutRecord, new: RolloutRecord) -> RolloutRecord:
        def effect() -> None:
            if (self.record.version, self.record.runner) != (old.version, old.runner):
                raise StaleRecordError(self.record)
            self.record = from_document(to_document(new))

        self._call("replace", effect)
        return self.record

    def check(self, record: RolloutRecord, *, timeout_s: float = 0.0) -> None:
        self._call("check")
        self.at_ms += round(timeout_s * 1000)
        if self.record.version > record.version:
            raise StaleRecordError(self.record)

    # -- the guards

    def evaluate(self, guard: Guard, record: RolloutRecord) -> GuardResult:
        self._call("evaluate")
        return GuardResult(guard=guard.text, outcome=next(self.outcomes, GuardOutcome.PASSED), reason="made up")

    def before(self, guard: Guard, record: RolloutRecord) -> tuple[tuple[float | None, ...], GuardResult]:
        return (1.0,) * len(record.waves), self.evaluate(guard, record)
