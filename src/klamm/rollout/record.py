"""State of a guarded roll-out: one record, the table of its transitions, and the plan of a revert.

=========  =======================================================================================================
State      Meaning
=========  =======================================================================================================
planned    Nothing has been changed.
applying   The settings of a wave are being written. The values before them are in the record already.
baking     The settings of a wave are written, and the guards are evaluated until the bake time is over.
guarded    All guards passed at the end of the bake time. The next wave, or the end, follows.
held       Nothing is changed until an operator resumes or aborts the roll-out.
reverting  The values before the roll-out are being restored.
reverted   The values before the roll-out are restored, except those that others have changed since, and those that an
           operator has left because they cannot be restored.
done       All waves are applied.
=========  =======================================================================================================

A record is written before the act that it announces. So a process that reads it after a crash repeats that act, which
sets the same values again.
"""

from __future__ import annotations

from dataclasses import asdict, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from klamm.client_configs.rollout import PREFIX
from klamm.configs.quotas import QUOTA_RESOURCE
from klamm.lazy_dataclass import dataclass
from klamm.resources.equality import is_same
from klamm.resources.model import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

Values: TypeAlias = "Mapping[str, Mapping[str, str | None]]"
"""Values of configs by entity and key. An entity is named as in the history of changes: ``TOPIC:orders``, ``BROKER:1``,
``QUOTA:user=alice``; a user with client configs is ``USER:alice``, and ``USER:`` is the default user. None: not set."""

FORMAT: Final = 0
_MAX_STEPS: Final = 200
_MAX_LEFT_ALONE: Final = 1000
_MAX_TEXT: Final = 2000
"""Limit for a reason, and for a sentence about a value left alone, in characters."""
_KINDS: Final = MappingProxyType(
    {"TOPIC": Kind.TOPIC, "BROKER": Kind.BROKER, QUOTA_RESOURCE: Kind.QUOTA, "USER": Kind.CLIENT_CONFIGS}
)
_NO_VALUES: Final[Values] = MappingProxyType({})


class RolloutState(StrEnum):
    """State of a roll-out."""

    PLANNED = "planned"
    APPLYING = "applying"
    BAKING = "baking"
    GUARDED = "guarded"
    HELD = "held"
    REVERTING = "reverting"
    REVERTED = "reverted"
    DONE = "done"


class RolloutEvent(StrEnum):
    """Event that changes the state of a roll-out."""

    NEXT = "next"
    """The values before the next wave are recorded, so the wave may be written."""
    APPLIED = "applied"
    FAILED = "failed"
    """A guard failed, or the cluster rejected a setting."""
    NO_DATA = "no data"
    PASSED = "passed"
    FINISHED = "finished"
    PAUSE = "pause"
    RESUME = "resume"
    """A process takes over the roll-out."""
    ABORT = "abort"
    RESTORED = "restored"


_S = RolloutState
_E = RolloutEvent
TRANSITIONS: Final[Mapping[tuple[RolloutState, RolloutEvent], RolloutState | None]] = MappingProxyType(
    {
        (_S.PLANNED, _E.NEXT): _S.APPLYING,
        (_S.PLANNED, _E.FAILED): _S.HELD,
        (_S.PLANNED, _E.NO_DATA): _S.HELD,
        (_S.PLANNED, _E.PAUSE): _S.HELD,
        (_S.PLANNED, _E.RESUME): _S.PLANNED,
        (_S.PLANNED, _E.ABORT): _S.REVERTING,
        (_S.APPLYING, _E.APPLIED): _S.BAKING,
        (_S.APPLYING, _E.FINISHED): _S.DONE,
        (_S.APPLYING, _E.FAILED): _S.REVERTING,
        (_S.APPLYING, _E.NO_DATA): _S.HELD,
        (_S.APPLYING, _E.PAUSE): _S.HELD,
        (_S.APPLYING, _E.RESUME): _S.APPLYING,
        (_S.APPLYING, _E.ABORT): _S.REVERTING,
        (_S.BAKING, _E.PASSED): _S.GUARDED,
        (_S.BAKING, _E.FAILED): _S.REVERTING,
        (_S.BAKING, _E.NO_DATA): _S.HELD,
        (_S.BAKING, _E.PAUSE): _S.HELD,
        (_S.BAKING, _E.RESUME): _S.BAKING,
        (_S.BAKING, _E.ABORT): _S.REVERTING,
        (_S.GUARDED, _E.NEXT): _S.APPLYING,
        (_S.GUARDED, _E.FINISHED): _S.DONE,
        (_S.GUARDED, _E.PAUSE): _S.HELD,
        (_S.GUARDED, _E.RESUME): _S.BAKING,
        (_S.GUARDED, _E.ABORT): _S.REVERTING,
        (_S.HELD, _E.RESUME): None,
        (_S.HELD, _E.ABORT): _S.REVERTING,
        (_S.REVERTING, _E.RESTORED): _S.REVERTED,
        (_S.REVERTING, _E.RESUME): _S.REVERTING,
        (_S.REVERTING, _E.ABORT): _S.REVERTING,
    }
)
"""State after each event that a state allows. None: as in the state in which the roll-out was held.

No guard is evaluated while no process drives a roll-out. So a guarded wave bakes again before the next one is written.
"""
OVER: Final = frozenset({RolloutState.DONE, RolloutState.REVERTED})
"""States that no event leaves."""


class TransitionError(Exception):
    """A roll-out does not allow this event in its present state. The message is for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """One wave of a roll-out."""

    name: str
    settings: Values
    """Values that the wave sets. None: the config is removed."""
    is_final: bool = False
    """Whether the wave changes the form of the settings only, so that it needs no bake time and no guards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """One step of a roll-out that was made."""

    at_ms: int
    event: str
    state: str
    """State after the step."""
    wave: int
    reason: str
    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """A guarded roll-out with everything that is needed to continue or revert it."""

    id: str
    waves: tuple[Wave, ...]
    bake_ms: int
    """Time in milliseconds that guards watch each wave."""
    check_ms: int
    """Interval between two evaluations of the guards in milliseconds."""
    guards: tuple[str, ...] = ()
    """Guards as the operator wrote them."""
    metrics: tuple[str, ...] = ()
    """Addresses (``HOST:PORT``) of the metrics listeners that guards read."""
    reverts_without_data: bool = False
    """Whether a guard without data reverts the roll-out instead of holding it."""
    operator: str = ""
    """``user@host`` of the process that drives the roll-out."""
    runner: str = ""
    """Random id of that process."""
    version: int = 0
    """Number of writes of this record. A write succeeds only on the version that it was computed from."""
    state: RolloutState = RolloutState.PLANNED
    wave: int = -1
    """Index of the latest wave that was begun; -1 before the first one."""
    resumes_in: RolloutState = RolloutState.PLANNED
    """State in which the roll-out was held."""
    since_ms: int = 0
    """Time of the latest change of the state, in milliseconds since the epoch."""
    reason: str = ""
    """Reason of the latest step. A long one, which names many entities, lacks its end."""
    before: Values = field(default_factory=lambda: MappingProxyType({}))
    """Values that the roll-out was planned from: what it changes, as it was before. None: not set."""
    baselines: Mapping[str, tuple[float | None, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Figures before the first wave by guard: for the clients of each wave, or for an increase of each page of
    ``metrics``. None: no data."""
    left_alone: tuple[str, ...] = ()
    """Sentence for each value that a revert did not restore, mostly because another change replaced it. If there are
    more than 1,000, the last sentence has the number of the others."""
    steps: tuple[RolloutStep, ...] = ()
    """Latest steps, oldest first."""

    @property
    def entities(self) -> tuple[str, ...]:
        """Names of all entities that the roll-out changes, sorted."""
        return tuple(sorted({entity for wave in self.waves for entity in wave.settings}))

    @property
    def is_over(self) -> bool:
        """Return whether the roll-out has ended."""
        return self.state in OVER

    @property
    def progress(self) -> str:
        """The state with the number and the name of the wave, as text for people."""
        if self.wave < 0:
            return self.state.value
        count = len([wave for wave in self.waves if not wave.is_final])
        wave = self.waves[self.wave]
        place = "all waves" if wave.is_final else f"wave {self.wave + 1} of {count} ({wave.name})"
        return f"{self.state.value}, {place}"


def begun(record: RolloutRecord, *, at_ms: int) -> RolloutRecord:
    """Return the first version of a record, with the time of its creation in milliseconds since the epoch."""
    made = RolloutStep(
        at_ms=at_ms, event="start", state=record.state.value, wave=record.wave, reason="", operator=record.operator
    )
    return replace(record, version=1, since_ms=at_ms, steps=(made,))


def advance(
    record: RolloutRecord,
    event: RolloutEvent,
    *,
    at_ms: int,
    reason: str = "",
    before: Values = _NO_VALUES,
    left_alone: tuple[str, ...] = (),
) -> RolloutRecord:
    """Return the record after an event.

    Args:
        record: The present record.
        event: The event.
        at_ms: Time of the event, in milliseconds since the epoch.
        reason: Reason, as text for people. The record keeps it shortened, so that it stays small with many entities.
        before: Values before the wave: with NEXT of everything that it sets, for a record without the values before it;
            after a write also of keys that a policy has added.
        left_alone: With RESTORED: sentences about values that were not restored.

    Raises:
        TransitionError: The state does not allow this event.
    """
    if event is RolloutEvent.NO_DATA and record.reverts_without_data and record.state is not RolloutState.PLANNED:
        event = RolloutEvent.FAILED
    if (record.state, event) not in TRANSITIONS:
        allowed = sorted(each.value for state, each in TRANSITIONS if state is record.state)
        raise TransitionError(
            f"roll-out {record.id} is {record.progress}: {event.value} is not possible; "
            + (f"possible are {', '.join(allowed)}" if allowed else "it has ended")
        )
    reason = _shortened(reason)
    state = TRANSITIONS[record.state, event] or cast("RolloutState", TRANSITIONS[record.resumes_in, event])
    wave = record.wave + (event is RolloutEvent.NEXT)
    made = RolloutStep(
        at_ms=at_ms, event=event.value, state=state.value, wave=wave, reason=reason, operator=record.operator
    )
    return replace(
        record,
        version=record.version + 1,
        state=state,
        wave=wave,
        since_ms=record.since_ms if state is record.state else at_ms,
        reason=reason,
        resumes_in=record.state if state is RolloutState.HELD else record.resumes_in,
        before=_with_first(record.before, before),
        left_alone=_first(record.left_alone + left_alone),
        steps=(*record.steps, made)[-_MAX_STEPS:],
    )


def _shortened(text: str) -> str:
    left_out = len(text) - _MAX_TEXT
    return text if left_out <= 0 else f"{text[:_MAX_TEXT]}... ({left_out:,} characters left out)"


def _first(sentences: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first of many sentences, and the number of the others as a sentence."""
    more = len(sentences) - _MAX_LEFT_ALONE
    return (*map(_shortened, sentences[:_MAX_LEFT_ALONE]), *([f"and {more:,} more"] if more > 0 else ()))


def values_before(waves: Iterable[Wave], current: Values) -> Values:
    """Return the present values of everything that waves set.

    Args:
        waves: Waves that have not begun.
        current: Present values of all their entities.
    """
    before: Values = _NO_VALUES
    for wave in waves:
        before = _with_first(
            before, {entity: {key: current[entity].get(key) for key in of} for entity, of in wave.settings.items()}
        )
    return before


def _with_first(before: Values, more: Values) -> Values:
    """Return recorded values with those of a further wave. The value before the first wave stays."""
    merged = {entity: dict(values) for entity, values in before.items()}
    for entity, values in more.items():
        merged[entity] = {**values, **merged.get(entity, {})}
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertPlan:
    """Outcome of comparing a roll-out with the present values."""

    settings: Values
    """Values to restore. None: the config is removed."""
    left_alone: tuple[str, ...]
    """Sentence for each value that another change has replaced."""


def plan_revert_of(record: RolloutRecord, current: Values) -> RevertPlan:
    """Return the settings that restore what was there before a roll-out.

    A value is restored if it is one that the roll-out has set. Any other value was set by someone else since then. What
    only later waves would set is not looked at.

    Args:
        record: The roll-out.
        current: Present values of its entities. An entity without an entry does not exist any more.
    """
    restored: dict[str, dict[str, str | None]] = {}
    left_alone: list[str] = []
    for entity, key, old in _entries(record.before):
        written = _written(record, entity, key)
        if not written:
            continue
        if entity not in current:
            left_alone.append(f"{entity} does not exist any more")
            continue
        value = current[entity].get(key)
        if is_equal(entity, key, value, old):
            continue
        if any(is_equal(entity, key, value, each) for each in written):
            restored.setdefault(entity, {})[key] = old
            if old is not None and key.startswith(PREFIX):
                # The cluster makes the value of a complete roll-out the plain one when another roll-out replaces it.
                plain = key.removeprefix(PREFIX)
                restored[entity].setdefault(plain, current[entity].get(plain))
        else:
            left_alone.append(_set_by_another(entity, key, value, written[-1], old))
    return RevertPlan(settings=restored, left_alone=tuple(dict.fromkeys(left_alone)))


def changed_by_others(record: RolloutRecord, current: Values) -> tuple[str, ...]:
    """Return a sentence for each value that someone else has changed since the roll-out was planned or has set it.

    A value before the roll-out is one of these, too, once a wave has set another.

    Args:
        record: The roll-out, whose present wave is being applied, perhaps for the second time.
        current: Present values of the wave's entities. An entity without an entry does not exist any more.
    """
    wave = record.waves[record.wave]
    sentences = []
    for entity, key, old in _entries(record.before):
        if entity not in wave.settings:
            continue
        *earlier, latest = (old, *_written(record, entity, key))
        if not earlier:  # only later waves set it
            continue
        if entity not in current:
            sentences.append(f"{entity} does not exist any more")
            continue
        value = current[entity].get(key)
        expected = [earlier[-1], latest] if key in wave.settings[entity] else [latest]
        if not any(is_equal(entity, key, value, each) for each in expected):
            sentences.append(_set_by_another(entity, key, value, earlier[-1] if earlier[1:] else latest, old))
    return tuple(dict.fromkeys(sentences))


def _written(record: RolloutRecord, entity: str, key: str) -> list[str | None]:
    """Return the values of a config in the waves so far."""
    return [wave.settings[entity][key] for wave in _waves_so_far(record) if key in wave.settings.get(entity, {})]


def _set_by_another(entity: str, key: str, value: str | None, written: str | None, old: str | None) -> str:
    return (
        f"{entity}: {key} is {_text(value)}, which another change has set (the roll-out had set {_text(written)},"
        f" before it was {_text(old)})"
    )


def remaining_values(
    record: RolloutRecord, unrestored: Values, current: Values, unreadable: Collection[str]
) -> tuple[str, ...]:
    """Return a sentence for each value of a roll-out that remains because the value before cannot be restored.

    Args:
        record: The roll-out.
        unrestored: Values to restore, of entities that can be read.
        current: Present values of these entities.
        unreadable: Entities that cannot be read. They may still have the latest value of the roll-out.
    """
    written: Values = _NO_VALUES
    for wave in reversed(record.waves[: record.wave + 1]):
        written = _with_first(written, {entity: of for entity, of in wave.settings.items() if entity in unreadable})
    before = {entity: {key: record.before[entity][key] for key in of} for entity, of in written.items()}
    values = {**current, **written}
    return tuple(
        f"{entity}: {key} {'may still be' if entity in unreadable else 'is'} {_text(value)}, which the roll-out has set"
        f" (before it was {_text(old)})"
        for entity, key, old in _entries({**unrestored, **before})
        if not is_equal(entity, key, value := values[entity].get(key), old)
    )


def entities_so_far(record: RolloutRecord) -> frozenset[str]:
    """Return the entities of the waves that have begun."""
    return frozenset(entity for wave in _waves_so_far(record) for entity in wave.settings)


def _waves_so_far(record: RolloutRecord) -> Iterable[Wave]:
    return record.waves[: record.wave + 1]


def _entries(values: Values) -> Iterator[tuple[str, str, str | None]]:
    return ((entity, key, value) for entity, of in values.items() for key, value in of.items())


def is_equal(entity: str, key: str, value: str | None, other: str | None) -> bool:
    """Return whether two values of a config of an entity mean the same. None means that it is not set."""
    if other is None:
        return value is None
    return is_same(_KINDS[entity.partition(":")[0]], key, value, other)


def _text(value: str | None) -> str:
    return "unset" if value is None else value


def conflict(records: Iterable[RolloutRecord], entities: Iterable[str]) -> tuple[RolloutRecord, str] | None:
    """Return the roll-out that has not ended and changes one of the entities, and that entity; None without one."""
    wanted = set(entities)
    for record in records:
        shared = wanted.intersection(record.entities)
        if shared and not record.is_over:
            return record, min(shared)
    return None


def to_document(record: RolloutRecord) -> dict[str, Any]:
    """Return a record as a JSON object."""
    plain = replace(
        record,
        before={entity: dict(values) for entity, values in record.before.items()},
        baselines=dict(record.baselines),
        waves=tuple(
            replace(wave, settings={entity: dict(of) for entity, of in wave.settings.items()}) for wave in record.waves
        ),
    )
    return {"format": FORMAT, **asdict(plain)}


def from_document(document: Mapping[str, Any]) -> RolloutRecord:
    """Return the record of a JSON object. Fields that later versions add are ignored.

    Raises:
        ValueError: The object is not a record.
    """
    fields = {name: document[name] for name in RolloutRecord.__slots__ if name in document}
    try:
        return RolloutRecord(
            **{
                **fields,
                "waves": tuple(Wave(**wave) for wave in fields["waves"]),
                "steps": tuple(RolloutStep(**step) for step in fields["steps"]),
                "state": RolloutState(fields["state"]),
                "resumes_in": RolloutState(fields["resumes_in"]),
                "baselines": {guard: tuple(figures) for guard, figures in fields["baselines"].items()},
                **{name: tuple(fields[name]) for name in ("guards", "metrics", "left_alone")},
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the record of a roll-out: {error!r}") from error
