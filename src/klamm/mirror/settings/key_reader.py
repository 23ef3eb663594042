"""Lookup of one flow's keys in ``mm2.properties`` by their precedence."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from klamm.mirror.naming import source_offsets_topic
from klamm.mirror.settings import definitions
from klamm.mirror.settings.definitions import KeyPlace, Repetition, Setting, Value
from klamm.properties import SettingsError, with_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

JAVA_PACKAGE: Final = "org.apache.kafka.connect.mirror."


class KeyReader:
    """Lookup of keys by precedence: ``A->B.k``, then ``k``.

    Keys of the Connect worker follow ``MirrorMakerConfig.workerConfig``: only ``B.k``, except ``offset.storage.*``,
    which is looked up at top level first. If they are not found there, klamm also accepts ``A->B.k`` and ``k``, in this
    order.

    All methods that convert a value raise ``SettingsError`` with the key in the file if the value is wrong.
    """

    def __init__(self, properties: Mapping[str, str], source: str, target: str) -> None:
        self._properties = properties
        self._flow = flow = f"{source}->{target}."
        worker = f"{target}."
        self._prefixes: Mapping[KeyPlace, tuple[str, ...]] = {
            KeyPlace.FLOW: (flow, ""),
            KeyPlace.FLOW_ONLY: (flow,),
            KeyPlace.WORKER: (worker, flow, ""),
            KeyPlace.WORKER_AT_TOP: ("", worker, flow),
        }

    def find(self, key: str, place: KeyPlace = KeyPlace.FLOW) -> tuple[str, str] | None:
        """Return the full key and its value. None: the key is not set."""
        values = {prefix + key: self._properties.get(prefix + key) for prefix in self._prefixes[place]}
        return next(((name, value.strip()) for name, value in values.items() if value is not None), None)

    def with_prefix(
        self, prefix: str, place: KeyPlace = KeyPlace.FLOW, accepts: Callable[[str], bool] = lambda _: True
    ) -> dict[str, str]:
        """Return the keys with a prefix, without the prefix, and their values.

        Args:
            prefix: Prefix.
            place: Places where the keys count.
            accepts: Returns whether a key exists, given without the prefix. Others do not count as read.
        """
        names = {name for start in self._prefixes[place] for name in with_prefix(self._properties, start + prefix)}
        entries = {name: self.find(prefix + name, place) for name in sorted(filter(accepts, names))}
        return {name: entry[1] for name, entry in entries.items() if entry is not None}

    def all_keys(self) -> frozenset[str]:
        """Return all keys of the file. Keys of the flow appear with and without ``A->B.``."""
        return frozenset({*self._properties, *with_prefix(self._properties, self._flow)})

    def get(self, setting: Setting[Value], *, default: Value | None = None) -> Value:
        """Return the value of a setting.

        Args:
            setting: Setting to look up, with its former key.
            default: Default in place of the one of the setting.
        """
        entry = self.find(setting.key, setting.place)
        if entry is None and setting.former_key:
            entry = self.find(setting.former_key, setting.place)
        if entry is not None:
            return setting.parse(*entry)
        return setting.default if default is None else default

    def repetition(self, repetition: Repetition) -> tuple[bool, timedelta]:
        """Return whether a step is repeated, and its interval.

        As in MirrorMaker, a negative interval switches the repetition off. With 0, heartbeats and checkpoints are
        written as often as possible, here every second, and MirrorMaker fails to start the others.
        """
        is_on, seconds = self.get(repetition.enabled), self.get(repetition.interval_s)
        key, _ = self.find(repetition.interval_s.key) or (repetition.interval_s.key, "")
        if seconds == 0 and is_on and not repetition.interval_s.key.startswith("emit."):
            raise SettingsError(f"{key}=0: expected a whole number from 1, or -1 to switch it off")
        return is_on and seconds >= 0, definitions.parse_seconds(key, str(max(seconds, 1)))

    def admin_timeout(self) -> timedelta:
        """Return ``admin.timeout.ms``. Values above 24 days count as that, the longest that requests can have."""
        return timedelta(milliseconds=min(self.get(definitions.ADMIN_TIMEOUT_MS), definitions.INT32_MAX))


def aliases_in_names(reader: KeyReader, source: str, target: str) -> tuple[str, str]:
    """Return the aliases of source and target in names of topics, which ``*.cluster.alias`` may replace.

    Raises:
        SettingsError: An alias has characters that are not valid in topic names.
    """
    return reader.get(definitions.SOURCE_ALIAS, default=source), reader.get(definitions.TARGET_ALIAS, default=target)


def worker_group(reader: KeyReader, source_alias: str) -> str:
    """Return ``group.id`` of Connect's worker, with MirrorMaker's default."""
    return reader.get(definitions.WORKER_GROUP, default=f"{source_alias}-mm2")


def source_offsets_topics(reader: KeyReader, source_alias: str) -> tuple[str, str | None]:
    """Return the flow's offsets topic and the worker's, if that is another one.

    The precedence is that of KIP-618 (``SourceConnectorConfig.OFFSETS_TOPIC_CONFIG``).
    """
    workers = reader.get(definitions.OFFSETS_TOPIC, default=source_offsets_topic(source_alias))
    own = reader.get(definitions.FLOW_OFFSETS_TOPIC)
    return (own, workers) if own not in ("", workers) else (workers, None)


class FlowKeys(Mapping[str, str]):
    """Keys of one flow as a mapping, for custom plugins: ``A->B.k`` before ``k``. Keys that are read count as known."""

    def __init__(self, reader: KeyReader) -> None:
        self._reader = reader

    def __getitem__(self, key: str) -> str:
        """Return the value of a key."""
        entry = self._reader.find(key)
        if entry is None:
            raise KeyError(key)
        return entry[1]

    def __iter__(self) -> Iterator[str]:
        """Yield all keys."""
        return iter(self._reader.all_keys())

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._reader.all_keys())


def own_class(reader: KeyReader, key: str, name: str, methods: Collection[str]) -> Any:
    """Create an instance of a custom plugin class, named ``module:Class``.

    A method ``configure`` is called once with the flow's keys, as Kafka does with its plugins.

    Args:
        reader: Keys of the flow.
        key: Key that names the class.
        name: Value of the key.
        methods: Methods that the class must have.

    Raises:
        SettingsError: The class cannot be loaded, created or configured, or lacks a method.
    """
    module, colon, attribute = name.partition(":")
    if not colon or name.startswith(JAVA_PACKAGE):
        raise SettingsError(f"{key}={name}: expected one of Kafka's default classes, or module:Class in Python")
    try:
        own = getattr(importlib.import_module(module), attribute)()
        missing = [method for method in methods if not callable(getattr(own, method, None))]
        if not missing and callable(configure := getattr(own, "configure", None)):
            configure(FlowKeys(reader))
    except Exception as error:  # custom code may raise anything
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise SettingsError(f"{key}={name}: cannot be loaded: {reason}") from error
    if missing:
        raise SettingsError(f"{key}={name}: expected a class with {', '.join(missing)}")
    return own
