"""Resources as files declare them, as a cluster has them, and the differences between both."""

from __future__ import annotations

import os
from dataclasses import field
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.configs.durations import duration_of
from klamm.lazy_dataclass import dataclass
from klamm.mirror.naming import DefaultReplicationPolicy
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.properties import SettingsError, file_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from klamm.policy.answers import PolicyOverride

FILE: Final = "file"
CLUSTER: Final = "cluster"
POLICY: Final = "policy"
HIDDEN: Final = "(secret)"
"""Text shown in place of a secret."""
DEFAULT_BROKER: Final = "default"
"""Name of the cluster-wide defaults among the brokers."""
ANY_ITERATIONS: Final = "any"
"""Value of a declared SCRAM credential whose iterations do not matter."""
NUMBERS: Final = frozenset({PARTITIONS, REPLICATION_FACTOR})
"""Keys of a topic that are not configs."""
THROTTLED_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
THROTTLED_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_THROTTLES: Final = frozenset((*THROTTLED_REPLICAS, *THROTTLED_RATES))
"""Configs that kafka-reassign-partitions.sh and Cruise Control set while they move replicas."""


class Kind(StrEnum):
    """Kind of a resource, in the order in which kinds are changed.

    ACLs and quotas of a user precede the credential, so that a new user never works without them.
    """

    BROKER = "broker"
    TOPIC = "topic"
    QUOTA = "quota"
    ACLS = "acls"
    SCRAM = "scram-user"
    GROUP = "group"
    CLIENT_METRICS = "client-metrics"
    CLIENT_CONFIGS = "client-configs"


GROUPED: Final = frozenset({Kind.QUOTA, Kind.ACLS, Kind.SCRAM})
"""Kinds whose keys are resources of their own for Kafka, so that ``--prune`` of the kind concerns each key."""


class ResourceKey(NamedTuple):
    """Kind and name of a resource."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        """Return ``topic orders``."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Reference to a secret. The secret itself is read when it is sent, and never shown."""

    variable: str | None = None
    """Name of an environment variable. None: the secret is in a file."""
    path: Path | None = None
    """File with the secret; ``~`` is the home directory. A line end after the secret does not belong to it. None: the
    secret is in a variable."""

    def read(self) -> str:
        """Return the secret.

        Raises:
            SettingsError: The variable is not set, or the file cannot be read. The message names it.
        """
        if self.path is None:
            secret = os.environ.get(self.variable or "")
            if not secret:
                raise SettingsError(f"the environment variable {self.variable} is not set; export it and try again")
            return secret
        try:
            text = self.path.expanduser().read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, ValueError, RuntimeError) as error:  # not UTF-8, a null byte in the path, or an unknown ~user
            raise SettingsError(f"the secret's file {self.path} cannot be read: {file_error(error)}") from error
        if not text:
            raise SettingsError(f"the secret's file {self.path} is empty")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One resource as the files declare it."""

    kind: Kind
    name: str
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Text of each declared key. Of an ACL the key says everything and the text is empty."""
    secrets: Mapping[str, Secret] = field(default_factory=lambda: MappingProxyType({}))
    """Secrets by key: of SCRAM mechanisms beside their value, of broker configs in place of it."""
    place: str = ""
    """Place of the declaration, for messages."""
    is_absent: bool = False
    """Whether the resource must not exist."""
    owns_all: bool = False
    """Whether keys that the files do not declare are removed."""
    ignored: tuple[str, ...] = ()
    """Shell patterns of keys that are neither compared nor removed."""
    is_managed: bool = True
    """Whether the resource is compared and changed. If not, it is left as it is, also by ``--prune``."""

    @property
    def key(self) -> ResourceKey:
        """Kind and name."""
        return ResourceKey(self.kind, self.name)

    def ignores(self, key: str) -> bool:
        """Return whether somebody else owns a key."""
        return any(fnmatchcase(key, pattern) for pattern in self.ignored)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentValue:
    """One value of an existing resource."""

    value: str | None
    """Present value. None if it is sensitive or has no value."""
    origin: str
    """Source of the value, as text for people."""
    is_own: bool
    """Whether the value is set on the resource itself; any other value is inherited."""
    inherited: str | None = None
    """Value that applies once the own value is removed. None if the cluster does not report it."""
    inherited_origin: str = "default"
    """Source of the inherited value."""
    is_sensitive: bool = False
    config_type: int = 0
    """Wire value of ``ConfigType``; 0 if the cluster does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """One resource as the cluster has it."""

    values: Mapping[str, CurrentValue]
    is_complete: bool = True
    """Whether ``values`` has all keys, not only the declared ones."""
    replicas: tuple[tuple[int, ...], ...] = ()
    """Replicas of each partition of a topic, the preferred leader first; during a reassignment those after it."""
    is_moving: bool = False
    """Whether replicas of the topic are being reassigned."""
    problem: str | None = None
    """Why the resource cannot be described. None if it can."""

    @property
    def own(self) -> dict[str, CurrentValue]:
        """Return the values that are set on the resource and can be removed from it, sorted, without throttles."""
        return {
            key: value
            for key, value in sorted(self.values.items())
            if value.is_own and key not in NUMBERS and key not in _THROTTLES
        }


class Mark(StrEnum):
    """Symbol for the change to a key or a resource."""

    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"
    REJECT = "!"
    SAME = "="


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """Change of one key of one resource: old and new value with the source of each."""

    mark: Mark
    key: str
    old: str | None
    """None if there is no old value."""
    old_origin: str | None
    new: str | None
    """None if the key is removed and the cluster does not report the inherited value."""
    new_origin: str
    is_secret: bool = False
    """Whether the new value is a secret that stands in the files themselves: it is sent, and never shown."""
    inherited_from: frozenset[str] = frozenset()
    """Broker configs that the plan changes, and from which the value is inherited until then. It is set before them."""

    @property
    def shown_new(self) -> str | None:
        """New value for people and documents."""
        return HIDDEN if self.is_secret else self.new

    def __str__(self) -> str:
        """Return ``~ key: old (its origin) -> new (its origin)``; of an ACL only the mark and the key."""
        if "" in (self.old, self.new) and None in (self.old, self.new):
            return f"{self.mark} {self.key}"
        after = "the inherited value" if self.new is None else self._shown(str(self.shown_new), self.new_origin)
        if self.old_origin is None:
            return f"{self.mark} {self.key}: {after}"
        return f"{self.mark} {self.key}: {self._shown(_text(self.old), self.old_origin)} -> {after}"

    def _shown(self, value: str, origin: str) -> str:
        words = duration_of(self.key, value)
        return f"{value} ({origin})" if words is None else f"{value} ({words}, {origin})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDiff:
    """All changes required for one resource."""

    declared: Declared
    exists: bool
    changes: tuple[KeyChange, ...]
    problems: tuple[str, ...] = ()
    """Declarations that cannot be carried out. If there are any, the resource is not changed."""
    override: PolicyOverride | None = None
    """What a policy stores in place of declared values; the changes contain it."""
    is_deletion: bool = False
    """Whether the resource is deleted."""

    @property
    def key(self) -> ResourceKey:
        """Kind and name of the resource."""
        return self.declared.key

    @property
    def is_in_line(self) -> bool:
        """Return whether the resource needs no change."""
        return not self.changes and not self.problems and not self.is_deletion and (self.exists or self._needs_nothing)

    @property
    def _needs_nothing(self) -> bool:
        """Return whether the resource consists of its keys, of which none is missing."""
        return self.declared.kind is not Kind.TOPIC or self.declared.is_absent

    @property
    def removals(self) -> int:
        """Return how many deletions ``--max-deletes`` counts: the resource, or the ACLs, quotas and credentials."""
        if self.is_deletion and self.declared.kind not in GROUPED:
            return 1
        if self.declared.kind not in GROUPED:
            return 0
        return sum(change.mark is Mark.REMOVE for change in self.changes)

    def change_of(self, key: str) -> KeyChange | None:
        """Return the change of one key; None if it does not change."""
        return next((change for change in self.changes if change.key == key), None)

    @property
    def config_changes(self) -> tuple[KeyChange, ...]:
        """Return the changes without those to partitions and replication factor."""
        return tuple(change for change in self.changes if change.key not in NUMBERS)


def _text(value: str | None) -> str:
    return "none" if value is None else value


def is_internal(topic: str) -> bool:
    """Return whether a topic belongs to Kafka, to MirrorMaker or to klamm itself, by its name."""
    return DefaultReplicationPolicy().is_internal_topic(topic)
