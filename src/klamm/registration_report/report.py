"""The report over the registration topic: what it holds, how it is asked for, and how it is kept between two runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_IGNORING: Final = 1_000
"""Of the clients that would ignore a config, so many are named; the Parquet files hold all."""
MAX_USERS: Final = 1_000
MAX_VERSIONS: Final = 1_000
"""Software versions with the most clients are told; the Parquet files hold all."""
MAX_CONFIGS: Final = 200
"""Configs that most clients support; a client may register any text."""
MAX_WINDOWS: Final = 100_000
DEFAULT_WINDOW: Final = "1 day"
NOTHING: Final = "(none)"
"""Stands for a config where nobody supports any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportRow:
    """How far one config reaches among the clients of one software version."""

    software: str
    version: str
    config: str
    clients: int
    """Of this software version: ``<user, client-id>`` pairs that support the config."""
    clients_total: int
    """Of this software version: ``<user, client-id>`` pairs that the config concerns."""
    users: tuple[str, ...]
    """Users of the supporting clients, sorted, 100 at most."""
    last_registered_ms: int
    """Milliseconds since the epoch."""
    unknown: int = 0
    """Of ``clients_total``: clients that never registered, so nothing is known of what they support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How many clients follow when a config is set. What counts is the newest version that a client registered."""

    config: str
    following: int
    clients: int
    """Clients that the config concerns: ``acks`` concerns producers, ``session.timeout.ms`` consumers."""
    user: str | None = None
    """Of whom; None: of everybody."""
    unknown: int = 0
    """Of those that do not follow: clients that never registered, so nothing is known of what they support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoringClient:
    """A ``<user, client-id>`` that would ignore a config if it were set."""

    config: str
    user: str
    client_id: str
    software: str
    """Of the newest version that it registered."""
    version: str
    supported_configs: tuple[str, ...] | None = ()
    """What it registered; None: it never registered, so nothing is known of what it supports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A ``<user, client-id>`` that a broker has seen, and that did not register with this software."""

    user: str
    client_id: str
    software: str
    version: str
    seen_ms: int
    """Milliseconds since the epoch."""
    kinds: tuple[str, ...] = ()
    """Values of ``ClientKind``, sorted; empty: unknown, so every config may concern it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionWindow:
    """How many clients registered a software version within one window of time."""

    start_ms: int
    """Milliseconds since the epoch."""
    software: str
    version: str
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The registration topic, summed up."""

    rows: tuple[SupportRow, ...]
    """One per software version and config that concerns any of its clients, also where none of them supports it.

    Ordered by software, version, config.
    """
    clients: int
    """``<user, client-id>`` pairs that have registered anything that was not taken back, or that a broker has seen."""
    records: int
    """Records that were read."""
    unreadable: int = 0
    """Of those: which are no registrations; they are left out of everything else."""
    reach: tuple[Reach, ...] = ()
    """One per config, those that most clients follow first."""
    users: tuple[Reach, ...] = ()
    """One per user and config, at most ``MAX_USERS``: users with the most clients first."""
    users_total: int = 0
    """How many users there are in all."""
    ignoring: tuple[IgnoringClient, ...] = ()
    """Who would ignore what, at most ``MAX_IGNORING``; ordered by config, user, client id."""
    ignoring_total: int = 0
    """How many there are of them in all."""
    windows: tuple[VersionWindow, ...] = ()
    """Versions over time, ordered by time, software, version."""
    versions_total: int = 0
    """Software versions in all, of which ``rows`` tells at most ``MAX_VERSIONS``."""
    never_registered: int = 0
    """Of ``clients``: those that never registered, of which only their software is known."""


def report_of(document: Mapping[str, Any]) -> Report:
    """Return the report that ``dataclasses.asdict`` made a document of, also by way of JSON."""

    def all_of(kind: type[Any], name: str) -> tuple[Any, ...]:
        return tuple(kind(**{key: _tuple(value) for key, value in one.items()}) for one in document[name])

    return Report(
        **{key: value for key, value in document.items() if isinstance(value, int)},
        rows=all_of(SupportRow, "rows"),
        reach=all_of(Reach, "reach"),
        users=all_of(Reach, "users"),
        ignoring=all_of(IgnoringClient, "ignoring"),
        windows=all_of(VersionWindow, "windows"),
    )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a report is about."""

    user: str | None = None
    """Only this user's clients; None: everybody's."""
    config: str | None = None
    """Only this config; None: all that anybody supports."""
    window: str = DEFAULT_WINDOW
    """The width of the windows of time, as Spark writes durations."""

    def title(self, cluster: str) -> str:
        """Return the heading."""
        parts = [f"Client configs of {cluster}"]
        if self.user is not None:
            parts.append(f"user {self.user}")
        if self.config is not None:
            parts.append(self.config)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How a report goes on."""

    every_s: float = 10.0
    """How often to look for new registrations."""
    checkpoint: Path | None = None
    """Where the state is kept, so that the next run goes on from there; None: nowhere, each run reads all."""
    late: str = "1 day"
    """How far a record may lie behind the newest one and still be counted in its window, as Spark writes durations."""


def replace_file(path: Path, text: str) -> None:
    """Write a file so that whoever reads it sees the old one or the new one, never half of it."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
