"""Properties of klamm's own, beside those of Kafka."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.client_configs.definitions import ALLOWED_KEYS, DEFINITIONS
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

METRICS_LISTEN: Final = "metrics.listen"
HISTORY_MAX_ENTRIES: Final = "config.history.max.entries"
DEFAULT_HISTORY_MAX_ENTRIES: Final = 1_000_000

OWN_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "create.topics.policy.class.name": "The name that KIP-108 gives create.topic.policy.class.name.",
        "create.partitions.policy.class.name": "The class that decides whether a topic may get more partitions.",
        "delete.topic.policy.class.name": "The class that decides whether a topic may be deleted.",
        "create.topic.policy.mode": "enforce (default), or audit: decide, count and log, but let pass.",
        "alter.config.policy.mode": "As create.topic.policy.mode, for changes of configs.",
        "create.partitions.policy.mode": "As create.topic.policy.mode, for more partitions.",
        "delete.topic.policy.mode": "As create.topic.policy.mode, for deletions.",
        "policy.timeout.ms": "How long a policy may take for one decision; 2000 unless set.",
        "policy.reload.interval.ms": "How often the files of policies are looked at; 1000 unless set, 0: never.",
        "policy.rules.file": "The YAML file of klamm.policy.rules:RulesPolicy.",
        METRICS_LISTEN: "HOST:PORT where Prometheus finds /metrics, and klamm clients who is connected; not served"
        " unless set.",
        ALLOWED_KEYS: "Which client configs may be set centrally (KIP-649), comma separated; all unless set.",
        HISTORY_MAX_ENTRIES: "How many changes of configs are remembered; 1000000 unless set, 0: none is dropped.",
    }
)
"""Name and meaning."""


def max_history(configs: Mapping[str, str]) -> int:
    """Return how many changes of configs are remembered, 0 for all.

    Raises:
        SettingsError: It is no number, or negative.
    """
    text = configs.get(HISTORY_MAX_ENTRIES, "").strip() or str(DEFAULT_HISTORY_MAX_ENTRIES)
    if not text.isascii() or not text.isdigit():
        raise SettingsError(f"{HISTORY_MAX_ENTRIES}={text}: expected a whole number, 0 or more")
    return int(text)


def allowed_client_configs(configs: Mapping[str, str]) -> frozenset[str] | None:
    """Return which client configs may be set centrally; None: all.

    Raises:
        SettingsError: One of them does not exist.
    """
    if ALLOWED_KEYS not in configs:
        return None
    names = frozenset(name.strip() for name in configs[ALLOWED_KEYS].split(",") if name.strip())
    if unknown := sorted(names - set(DEFINITIONS)):
        raise SettingsError(f"{ALLOWED_KEYS}={','.join(unknown)}: expected some of {', '.join(DEFINITIONS)}")
    return names
