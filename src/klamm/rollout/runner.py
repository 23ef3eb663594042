"""Loop that drives one roll-out from state to state.

Each step writes the record first and acts afterwards, or acts and then writes the result. A process that takes over
repeats the act that the record announces. All acts can be repeated: they set values, and compare what is there before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.protocol.errors import KafkaApiError
from klamm.rollout.entities import RejectedSettingsError
from klamm.rollout.guards import GuardOutcome, parse_guard
from klamm.rollout.record import (
    RolloutEvent,
    RolloutRecord,
    RolloutState,
    Values,
    advance,
    changed_by_others,
    entities_so_far,
    is_equal,
    plan_revert_of,
    remaining_values,
    values_before,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.rollout.entities import EntityValues
    from klamm.rollout.guards import Guard, GuardResult

_MAX_PASSES: Final = 10
"""Attempts of a revert to see all values restored. Another process may still write a wave for some seconds."""


class RolloutCluster(Protocol):
    """Entities of a cluster, as ``Entities``."""

    def values(self, entities: Collection[str]) -> EntityValues:
        """Return the values that are set on entities."""
        ...

    def write(self, settings: Values) -> Values:
        """Set and remove configs. Return the settings as they are stored: a policy may replace values, and add keys."""
        ...


class RolloutRecords(Protocol):
    """Records of roll-outs, as ``RolloutStore``."""

    def replace(self, old: RolloutRecord, new: RolloutRecord) -> RolloutRecord:
        """Replace a record if it is still the latest one."""
        ...

    def check(self, record: RolloutRecord, *, timeout_s: float = 0.0) -> None:
        """Wait some time for another process to change a record."""
        ...


class RolloutGuards(Protocol):
    """Evaluation of guards, as ``Probe``."""

    def evaluate(self, guard: Guard, record: RolloutRecord) -> GuardResult:
        """Return the outcome of a guard for the present wave of a roll-out."""
        ...

    def before(self, guard: Guard, record: RolloutRecord) -> tuple[tuple[float | None, ...], GuardResult]:
        """Return the figures before a roll-out, and whether it may begin."""
        ...


class RevertError(Exception):
    """Values cannot be restored. The roll-out stays in the state ``reverting``; the message is for the operator."""


class Runner:
    """Driver of one roll-out in this process. Blocking.

    Args:
        records: Records of roll-outs.
        cluster: Entities of the cluster.
        guards: Evaluation of guards.
        now_ms: Wall clock, in milliseconds since the epoch.
        on_step: Function that is called with the record after each step.
        ends_unrestored: Whether a revert ends although some values cannot be restored. The record names them.
    """

    def __init__(
        self,
        records: RolloutRecords,
        cluster: RolloutCluster,
        guards: RolloutGuards,
        *,
        now_ms: Callable[[], int],
        on_step: Callable[[RolloutRecord], None] = lambda _: None,
        ends_unrestored: bool = False,
    ) -> None:
        self._records = records
        self._cluster = cluster
        self._guards = guards
        self._now_ms = now_ms
        self._on_step = on_step
        self._ends_unrestored = ends_unrestored
        self._steps: Mapping[RolloutState, Callable[[RolloutRecord], RolloutRecord]] = {
            RolloutState.PLANNED: self._begin,
            RolloutState.APPLYING: self._apply,
            RolloutState.BAKING: self._bake,
            RolloutState.GUARDED: self._continue,
            RolloutState.REVERTING: self._revert,
        }

    def run(self, record: RolloutRecord) -> RolloutRecord:
        """Drive a roll-out until it has ended or is held.

        Raises:
            StaleRecordError: Another process has taken over.
            RevertError: Values cannot be restored.
        """
        while record.state in self._steps:
            record = self._steps[record.state](record)
        return record

    def _write(self, record: RolloutRecord, event: RolloutEvent, **details: Any) -> RolloutRecord:
        written = self._records.replace(record, advance(record, event, at_ms=self._now_ms(), **details))
        self._on_step(written)
        return written

    def _begin(self, record: RolloutRecord) -> RolloutRecord:
        baselines: dict[str, tuple[float | None, ...]] = {}
        for guard in _guards_of(record):
            baselines[guard.text], result = self._guards.before(guard, record)
            if result.outcome is not GuardOutcome.PASSED:
                event = _EVENTS[result.outcome]
                return self._write(record, event, reason=f"before the first wave: {result}")
        return self._next(record, baselines)

    def _next(
        self, record: RolloutRecord, baselines: Mapping[str, tuple[float | None, ...]] | None = None
    ) -> RolloutRecord:
        """Begin the next wave."""
        wave = record.waves[record.wave + 1]
        current = self._cluster.values(wave.settings)
        if current.unreadable:
            return self._write(record, RolloutEvent.PAUSE, reason=current.trouble)
        if missing := sorted(wave.settings.keys() - current.values.keys()):
            return self._write(record, RolloutEvent.PAUSE, reason=f"{', '.join(missing)} does not exist any more")
        before = values_before([wave], current.values)  # the record may be of a release that read them wave by wave
        begun = record if baselines is None else replace(record, baselines=baselines)
        return self._write(begun, RolloutEvent.NEXT, before=before, reason=f"wave {wave.name}")

    def _apply(self, record: RolloutRecord) -> RolloutRecord:
        # No guard was evaluated while the roll-out was held, or while no process drove it.
        if record.steps[-1].event == RolloutEvent.RESUME and (worst := _worst(self._results_before_wave(record))):
            return self._write(record, _EVENTS[worst[0].outcome], reason="; ".join(map(str, worst)))
        wave = record.waves[record.wave]
        self._records.check(record)
        current = self._cluster.values(wave.settings)
        if current.unreadable:
            return self._write(record, RolloutEvent.PAUSE, reason=current.trouble)
        # Another operator may have changed a value since the roll-out was planned, or since an earlier wave set it.
        if changed := changed_by_others(record, current.values):
            return self._write(record, RolloutEvent.PAUSE, reason="; ".join(changed))
        event, reason = RolloutEvent.FINISHED if wave.is_final else RolloutEvent.APPLIED, ""
        try:
            settings = self._cluster.write(wave.settings)
        except RejectedSettingsError as error:
            event, reason, settings = RolloutEvent.FAILED, f"rejected: {error}", error.stored
        # Policies may have changed since the roll-out was planned. A revert restores what they stored, too.
        stored = replace(wave, settings=settings)
        waves = (*record.waves[: record.wave], stored, *record.waves[record.wave + 1 :])
        before = values_before([stored], current.values)
        return self._write(replace(record, waves=waves), event, reason=reason, before=before)

    def _results_before_wave(self, record: RolloutRecord) -> list[GuardResult]:
        """Evaluate the guards for the wave before the one to be written, or as before the first wave."""
        previous = replace(record, wave=record.wave - 1)
        return [
            self._guards.evaluate(guard, previous) if record.wave else self._guards.before(guard, previous)[1]
            for guard in _guards_of(record)
        ]

    def _bake(self, record: RolloutRecord) -> RolloutRecord:
        guards = _guards_of(record)
        end_ms = record.since_ms + record.bake_ms
        while True:
            # The bake time may have passed while no process drove the roll-out; the guards decide once more.
            is_end = self._now_ms() >= end_ms
            results = [self._guards.evaluate(guard, record) for guard in guards]
            worst = _worst(results)
            if worst and (is_end or worst[0].outcome is GuardOutcome.FAILED):
                return self._write(record, _EVENTS[worst[0].outcome], reason="; ".join(map(str, worst)))
            if is_end:
                return self._write(record, RolloutEvent.PASSED, reason="; ".join(map(str, results)))
            left_ms = max(end_ms - self._now_ms(), 0)
            self._records.check(record, timeout_s=min(record.check_ms, left_ms) / 1000)

    def _continue(self, record: RolloutRecord) -> RolloutRecord:
        if record.wave + 1 < len(record.waves):
            return self._next(record)
        return self._write(record, RolloutEvent.FINISHED)

    def _revert(self, record: RolloutRecord) -> RolloutRecord:
        rejected = ""
        kept: dict[str, dict[str, str | None]] = {}
        """Values that policies stored instead of those before. They are what can be restored."""
        for passes_left in range(_MAX_PASSES, -1, -1):
            self._records.check(record)
            current = self._cluster.values(entities_so_far(record))
            # What cannot be read now cannot be compared. It is restored when the roll-out is resumed.
            before = {
                entity: {**of, **kept.get(entity, {})}
                for entity, of in record.before.items()
                if entity not in current.unreadable
            }
            plan = plan_revert_of(replace(record, before=before), current.values)
            left_alone = (*plan.left_alone, *_sentences(kept))
            if not plan.settings and not current.unreadable:
                return self._write(record, RolloutEvent.RESTORED, left_alone=left_alone)
            if not plan.settings or not passes_left:
                break
            rejected = ""
            try:
                stored = self._cluster.write(plan.settings)
            except RejectedSettingsError as error:
                stored, rejected = error.stored, str(error)
            except KafkaApiError as error:
                stored, rejected = plan.settings, str(error)
            for entity, wanted in plan.settings.items():
                values = {**current.values[entity], **wanted}
                differing = {
                    key: value
                    for key, value in stored[entity].items()
                    if not is_equal(entity, key, values.get(key), value)
                }
                kept.setdefault(entity, {}).update(differing)
        trouble = "; ".join(filter(None, (current.trouble, rejected if plan.settings else ""))) or "they do not stay"
        if self._ends_unrestored:
            remaining = remaining_values(record, plan.settings, current.values, current.unreadable)
            return self._write(record, RolloutEvent.RESTORED, reason=trouble, left_alone=(*left_alone, *remaining))
        raise RevertError(
            f"roll-out {record.id}: values before it cannot be restored: {trouble}; remove the cause, then continue"
            f" with klamm rollout resume {record.id}; if that is impossible, end it with klamm rollout abort"
            f" {record.id} --leave-unrestored"
        )


_EVENTS: Final = {GuardOutcome.FAILED: RolloutEvent.FAILED, GuardOutcome.NO_DATA: RolloutEvent.NO_DATA}


def _worst(results: Sequence[GuardResult]) -> Sequence[GuardResult]:
    """Return the results of the guards that failed, else of those without data."""
    failed = [result for result in results if result.outcome is GuardOutcome.FAILED]
    return failed or [result for result in results if result.outcome is GuardOutcome.NO_DATA]


def _sentences(kept: Values) -> Sequence[str]:
    """Return a sentence for each value that a policy stored instead of the one before."""
    return [
        f"{entity}: {key} is {'unset' if value is None else value}, which a policy has set"
        for entity, of in kept.items()
        for key, value in of.items()
    ]


def _guards_of(record: RolloutRecord) -> Sequence[Guard]:
    return [parse_guard(text) for text in record.guards]
