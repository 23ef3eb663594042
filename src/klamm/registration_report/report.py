"""Data classes of the registration report: its content, its scope, and the settings of a repeated report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_IGNORING: Final = 1_000
"""Maximum number of ignoring clients in a report, divided equally among the configs. The Parquet files contain all."""
MIN_IGNORING: Final = 10
"""Number of ignoring clients of a config that a report contains in any case."""
MAX_USERS: Final = 1_000
MAX_VERSIONS: Final = 1_000
"""Maximum number of software versions in a report, those with the most clients. The Parquet files contain all."""
MAX_CONFIGS: Final = 200
"""Maximum number of configs, those with the most clients. A client may register arbitrary names."""
MAX_WINDOWS: Final = 100_000
"""Maximum number of counts of versions over time, those with the most clients. The Parquet files contain all."""
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
    """Number of those ``clients_total`` that never registered, so that their support is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Number of clients that follow a config when it is set, by the newest version that each client registered."""

    config: str
    following: int
    clients: int
    """Clients that the config concerns: ``acks`` concerns producers, ``session.timeout.ms`` concerns consumers."""
    user: str | None = None
    """User of the clients; None means all users."""
    unknown: int = 0
    """Clients that never registered, so that their support is unknown. They are among those that do not follow."""
    enforced: int = 0
    """Clients among ``unknown`` for which a broker that has seen them would enforce the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoringClient:
    """A ``<user, client-id>`` that would ignore a config if it were set."""

    config: str
    user: str
    client_id: str
    software: str
    """Software of the newest registered version."""
    version: str
    supported_configs: tuple[str, ...] | None = ()
    """Registered configs; None if the client never registered, so that its support is unknown."""
    is_enforced: bool = False
    """Whether a broker that has seen the client would enforce the config for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A ``<user, client-id>`` that a broker has seen and that did not register with this software."""

    user: str
    client_id: str
    software: str
    version: str
    seen_ms: int
    """Milliseconds since the epoch."""
    kinds: tuple[str, ...] = ()
    """Values of ``ClientKind``, sorted. Empty if unknown, so that every config may concern the client."""
    enforceable: tuple[str, ...] = ()
    """Configs that the broker would enforce for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionWindow:
    """Number of clients that registered a software version within one time window."""

    start_ms: int
    """Milliseconds since the epoch."""
    software: str
    version: str
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Summary of the registration topic."""

    rows: tuple[SupportRow, ...]
    """One row per software version and config that concerns any of its clients, also if none of them supports it.

    Ordered by software, version, config.
    """
    clients: int
    """Number of ``<user, client-id>`` pairs with a registration that was not withdrawn, or that a broker has seen."""
    records: int
    """Number of records read."""
    unreadable: int = 0
    """Number of records that are not registrations. They do not count anywhere else."""
    reach: tuple[Reach, ...] = ()
    """One row per config, configs with the most following clients first."""
    users: tuple[Reach, ...] = ()
    """One row per user and config, at most ``MAX_USERS`` users, those with the most clients first."""
    users_total: int = 0
    """Total number of users."""
    ignoring: tuple[IgnoringClient, ...] = ()
    """Clients that would ignore a config, ordered by config, user, client id, the first of each config.

    At most ``MAX_IGNORING`` divided by the number of configs, but at least ``MIN_IGNORING``, of each config.
    """
    ignoring_total: int = 0
    """Total number of ignoring clients."""
    windows: tuple[VersionWindow, ...] = ()
    """Versions over time, ordered by time, software, version."""
    versions_total: int = 0
    """Total number of software versions, of which ``rows`` contains at most ``MAX_VERSIONS``."""
    never_registered: int = 0
    """Number of ``clients`` that never registered. Only their software is known."""


def report_of(document: Mapping[str, Any]) -> Report:
    """Return the report of a document that ``dataclasses.asdict`` produced, also after a round trip through JSON."""

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
    """Scope of a report."""

    user: str | None = None
    """User whose clients are reported; None means all users."""
    config: str | None = None
    """Config to report; None means every config that any client supports."""
    window: str = DEFAULT_WINDOW
    """Width of the time windows, as Spark writes durations."""

    def title(self, cluster: str) -> str:
        """Return the heading of the report."""
        parts = [f"Client configs of {cluster}"]
        if self.user is not None:
            parts.append(f"user {self.user}")
        if self.config is not None:
            parts.append(self.config)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Settings of a repeated report."""

    every_s: float = 10.0
    """Seconds between checks for new registrations."""
    checkpoint: Path | None = None
    """Directory of the state, from which the next run resumes. None keeps no state, so each run reads everything."""
    late: str = "1 day"
    """Maximum lateness of a record that still counts in its window, as Spark writes durations."""
