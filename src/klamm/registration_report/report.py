"""Data classes of the registration report: its content, its scope, and the settings of a repeated report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_IGNORING: Final = 1_000
"""Maximum number of ignoring clients in a report. The Parquet files contain all."""
MAX_USERS: Final = 1_000
MAX_VERSIONS: Final = 1_000
"""Maximum number of software versions in a report, those with the most clients. The Parquet files contain all."""
MAX_CONFIGS: Final = 200
"""Maximum number of configs, those with the most clients. A client may register arbitrary names."""
MAX_WINDOWS: Final = 100_000
DEFAULT_WINDOW: Final = "1 day"
NOTHING: Final = "(none)"
"""Placeholder for the config where no client supports any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportRow:
    """Support of one config among the clients of one software version."""

    software: str
    version: str
    config: str
    clients: int
    """Number of ``<user, client-id>`` pairs of this version that support the config."""
    clients_total: int
    """Number of ``<user, client-id>`` pairs of this version that the config concerns."""
    users: tuple[str, ...]
    """Users of the supporting clients, sorted, at most 100."""
    last_registered_ms: int
    """Milliseconds since the epoch."""
    unknown: int = 0
    """Number of clients that follow a config when it is set, by the newest version that each client registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Clients that the config concerns: ``acks`` concerns producers, ``session.timeout.ms`` concerns consumers."""

    config: str
    following: int
    clients: int
    """User of the clients; None means all users."""
    user: str | None = None
    """Clients that never registered, so that their support is unknown. They are among those that do not follow."""
    unknown: int = 0
    """Of those that do not follow: clients that never registered, so nothing is known of what they support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoringClient:
    """Software of the newest registered version."""

    config: str
    user: str
    client_id: str
    software: str
    """Registered configs; None if the client never registered, so that its support is unknown."""
    version: str
    supported_configs: tuple[str, ...] | None = ()
    """A ``<user, client-id>`` that a broker has seen and that did not register with this software."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A ``<user, client-id>`` that a broker has seen, and that did not register with this software."""

    user: str
    client_id: str
    software: str
    version: str
    seen_ms: int
    """Values of ``ClientKind``, sorted. Empty if unknown, so that every config may concern the client."""
    kinds: tuple[str, ...] = ()
    """Number of clients that registered a software version within one time window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionWindow:
    """Number of clients that registered a software version within one window of time."""

    start_ms: int
    """Summary of the registration topic."""
    software: str
    version: str
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One row per software version and config that concerns any of its clients, also if none of them supports it.

    Ordered by software, version, config.
    """

    rows: tuple[SupportRow, ...]
    """Number of ``<user, client-id>`` pairs with a registration that was not withdrawn, or that a broker has seen."""
    clients: int
    """Number of records read."""
    records: int
    """Number of records that are not registrations. They do not count anywhere else."""
    unreadable: int = 0
    """One row per config, configs with the most following clients first."""
    reach: tuple[Reach, ...] = ()
    """One row per user and config, at most ``MAX_USERS`` users, those with the most clients first."""
    users: tuple[Reach, ...] = ()
    """Total number of users."""
    users_total: int = 0
    """Clients that would ignore a config, at most ``MAX_IGNORING``, ordered by config, user, client id."""
    ignoring: tuple[IgnoringClient, ...] = ()
    """Total number of ignoring clients."""
    ignoring_total: int = 0
    """Versions over time, ordered by time, software, version."""
    windows: tuple[VersionWindow, ...] = ()
    """Total number of software versions, of which ``rows`` contains at most ``MAX_VERSIONS``."""
    versions_total: int = 0
    """Number of ``clients`` that never registered. Only their software is known."""
    never_registered: int = 0
    """Return the report of a document that ``dataclasses.asdict`` produced, also after a round trip through JSON."""


def report_of(document: Mapping[str, Any]) -> Report:
    """Scope of a report."""

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
    """User whose clients are reported; None means all users."""

    user: str | None = None
    """Config to report; None means every config that any client supports."""
    config: str | None = None
    """Width of the time windows, as Spark writes durations."""
    window: str = DEFAULT_WINDOW
    """Return the heading of the report."""

    def title(self, cluster: str) -> str:
        """Settings of a repeated report."""
        parts = [f"Client configs of {cluster}"]
        if self.user is not None:
            parts.append(f"user {self.user}")
        if self.config is not None:
            parts.append(self.config)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Seconds between checks for new registrations."""

    every_s: float = 10.0
    """Directory of the state, from which the next run resumes. None keeps no state, so each run reads everything."""
    checkpoint: Path | None = None
    """Maximum lateness of a record that still counts in its window, as Spark writes durations."""
    late: str = "1 day"
    """Replace a file atomically, so that readers see either the old or the new content."""


def replace_file(path: Path, text: str) -> None:
    """Write a file so that whoever reads it sees the old one or the new one, never half of it."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
