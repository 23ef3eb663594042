"""Roll-outs as text for people, and the document of a dry run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import shown_moment
from klamm.configs.durations import in_words, with_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.rollout.record import RolloutRecord, Values, Wave

_MAX_SHOWN: Final = 10


def step_line(record: RolloutRecord) -> str:
    """Return the latest step of a roll-out as one line."""
    reason = f": {record.reason}" if record.reason else ""
    return f"{shown_moment(record.steps[-1].at_ms)}  {record.id}  {record.progress}{reason}"


def list_lines(records: Sequence[RolloutRecord]) -> list[str]:
    """Return one line per roll-out, oldest first."""
    if not records:
        return ["There is no roll-out."]
    return [
        f"{record.id}  {shown_moment(record.since_ms)}  {record.operator}  {_some(record.entities)}  {record.progress}"
        for record in records
    ]


def status_lines(record: RolloutRecord) -> list[str]:
    """Return a roll-out with its waves, guards and steps."""
    return [
        f"{record.id}: {record.progress}{f': {record.reason}' if record.reason else ''}",
        f"  operator: {record.operator}",
        f"  bake time: {_duration(record.bake_ms)}",
        *(
            f"  {'*' if number <= record.wave else ' '} wave {number + 1} ({wave.name}): {_some(sorted(wave.settings))}"
            for number, wave in enumerate(record.waves)
        ),
        *(f"  guard: {guard}" for guard in record.guards),
        *(
            f"  {shown_moment(step.at_ms)}  {step.operator}: {step.event} -> {step.state}"
            f"{f': {step.reason}' if step.reason else ''}"
            for step in record.steps
        ),
        *(f"  left alone: {sentence}" for sentence in record.left_alone),
    ]


def dry_run_lines(record: RolloutRecord, current: Values) -> list[str]:
    """Return the waves of a roll-out with the values before and after each."""
    lines: list[str] = []
    for number, wave in enumerate(record.waves, 1):
        bake = "" if wave.is_final else f", then guards watch for {_duration(record.bake_ms)}"
        lines.append(f"wave {number} ({wave.name}): {_some(sorted(wave.settings))}{bake}")
        changes = list(_changes(wave, current))
        lines += [
            f"  {entity}: {key}: {_text(key, old)} -> {_text(key, new)}"
            for entity, key, old, new in changes[:_MAX_SHOWN]
        ]
        if len(changes) > _MAX_SHOWN:
            lines.append(f"  and {len(changes) - _MAX_SHOWN:,} more")
    return [*lines, *(f"guard: {guard}" for guard in record.guards)]


def dry_run_document(record: RolloutRecord, current: Values) -> dict[str, Any]:
    """Return the waves of a roll-out for JSON or YAML output."""
    return {
        "waves": [
            {
                "name": wave.name,
                "is_final": wave.is_final,
                "changes": [
                    {"entity": entity, "key": key, "old": old, "new": new}
                    for entity, key, old, new in _changes(wave, current)
                ],
            }
            for wave in record.waves
        ],
        "guards": list(record.guards),
        "bake_ms": record.bake_ms,
    }


def _changes(wave: Wave, current: Values) -> Iterator[tuple[str, str, str | None, str | None]]:
    for entity, values in sorted(wave.settings.items()):
        for key, value in values.items():
            yield entity, key, current.get(entity, {}).get(key), value


def _some(entities: Sequence[str]) -> str:
    more = len(entities) - _MAX_SHOWN
    return ", ".join(entities[:_MAX_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _text(key: str, value: str | None) -> str:
    return "unset" if value is None else with_duration(key, value)


def _duration(milliseconds: int) -> str:
    return in_words(milliseconds) or f"{milliseconds:,} ms"
