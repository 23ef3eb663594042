"""Lookup of one flow's keys in ``mm2.properties`` by their precedence."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.names import MAX_TOPIC_NAME_LENGTH, check_topic_name, is_of_topic_characters
from klamm.mirror.filters import PatternList
from klamm.mirror.settings import keys
from klamm.properties import SettingsError, parse_bool, parse_int, parse_list, with_prefix
from klamm.protocol.errors import InvalidTopicError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

JAVA_PACKAGE: Final = "org.apache.kafka.connect.mirror."


_FROM_TOP: Final = keys.WORKER_OFFSETS_PREFIX
"""Prefix of the Connect worker keys that MirrorMaker reads at top level of the file instead of at ``B.``."""


class KeyReader:
    """Lookup of keys by precedence: ``A->B.k``, then ``k``.

    Keys of the Connect worker follow ``MirrorMakerConfig.workerConfig``: only ``B.k``, except ``offset.storage.*``,
    which is looked up at top level first. If they are not found there, klamm also accepts ``A->B.k`` and ``k``, in this
    order.

    All methods that convert a value raise ``SettingsError`` with the key in the file if the value is wrong.
    """

    def __init__(self, properties: Mapping[str, str], source: str, target: str) -> None:
        self._properties = properties
        self._flow = f"{source}->{target}."
        self._target = f"{target}."

    def find(self, key: str, *, worker: bool = False) -> tuple[str, str] | None:
        """Return the full key and its value. None: the key is not set."""
        prefixes: tuple[str, ...] = (self._flow, "")
        if worker:
            prefixes = ("", self._target, self._flow) if key.startswith(_FROM_TOP) else (self._target, self._flow, "")
        values = {prefix + key: self._properties.get(prefix + key) for prefix in prefixes}  # every place counts as read
        return next(((place, value.strip()) for place, value in values.items() if value is not None), None)

    def find_in_flow(self, key: str) -> tuple[str, str] | None:
        """Return the full key and its value at ``A->B.k``, for keys that count only there. None: it is not set."""
        value = self._properties.get(self._flow + key)
        return None if value is None else (self._flow + key, value.strip())

    def of_worker(self, prefix: str) -> dict[str, str]:
        """Return the Connect worker keys with a prefix, without the prefix, and their values."""
        places = (prefix, self._target + prefix, self._flow + prefix)
        names = {name for place in places for name in with_prefix(self._properties, place)}
        return {name: self.text(prefix + name, "", worker=True) for name in sorted(names)}

    def all_keys(self) -> frozenset[str]:
        """Return all keys of the file. Keys of the flow appear with and without ``A->B.``."""
        return frozenset({*self._properties, *with_prefix(self._properties, self._flow)})

    def boolean(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        found = self.find(key)
        return parse_bool(*found) if found else default

    def integer(self, key: str, default: int, *, at_least: int, at_most: int = 2**31 - 1, worker: bool = False) -> int:
        """Return an integer."""
        found = self.find(key, worker=worker)
        return parse_int(*found, at_least=at_least, at_most=at_most) if found else default

    def repetition(self, prefix: str, default_s: int, *, enabled: bool = True) -> tuple[bool, timedelta]:
        """Return ``<prefix>.enabled`` and ``<prefix>.interval.seconds``.

        As in MirrorMaker, a negative interval switches the repetition off. With 0, heartbeats and checkpoints are
        written as often as possible, here every second, and MirrorMaker fails to start the others.

        Args:
            prefix: Prefix of both keys.
            default_s: Default interval in seconds.
            enabled: Whether the repetition is on by default.
        """
        is_on = self.boolean(f"{prefix}.enabled", enabled)
        key, text = self.find(f"{prefix}.interval.seconds") or (prefix, str(default_s))
        seconds = parse_int(key, text, at_least=-keys.MAX_LONG - 1, at_most=keys.MAX_LONG)
        if seconds == 0 and is_on and not prefix.startswith("emit."):
            raise SettingsError(f"{key}=0: expected a whole number from 1, or -1 to switch it off")
        return is_on and seconds >= 0, keys.parse_seconds(key, str(max(seconds, 1)))

    def admin_timeout(self) -> timedelta:
        """Return ``admin.timeout.ms``. Values above 24 days count as that, the longest that requests can have."""
        timeout_ms = self.integer("admin.timeout.ms", 60_000, at_least=1, at_most=keys.MAX_LONG)
        return timedelta(milliseconds=min(timeout_ms, 2**31 - 1))

    def choice(self, key: str, default: keys.Choice) -> keys.Choice:
        """Return a value of the default's enum."""
        found = self.find(key)
        return keys.parse_choice(*found, type(default)) if found else default

    def text(self, key: str, default: str, *, worker: bool = False) -> str:
        """Return a string."""
        found = self.find(key, worker=worker)
        return found[1] if found else default

    def topic(self, key: str, default: str, *, worker: bool = False) -> str:
        """Return a topic name.

        Raises:
            SettingsError: The value is not a valid topic name.
        """
        found = self.find(key, worker=worker)
        return check_topic(*found) if found else default

    def patterns(self, key: str, default: tuple[str, ...], *, old_key: str | None = None) -> PatternList:
        """Return a list of regular expressions.

        Args:
            key: Key to look up.
            default: Patterns if the key is not set.
            old_key: Former name of the key, used if ``key`` is not set.
        """
        found = self.find(key) or (self.find(old_key) if old_key else None)
        if found is None:
            return PatternList.compile(key, default)
        return PatternList.compile(found[0], parse_list(found[1]))

    def count(self, key: str, default: int, *, at_most: int = 2**15 - 1, worker: bool = False) -> int:
        """Return a replication factor or a number of partitions: at least 1, or -1 for the cluster's default.

        Raises:
            SettingsError: The value is 0, less than -1 or not an integer.
        """
        number = self.integer(key, default, at_least=-1, at_most=at_most, worker=worker)
        if number == 0:
            found, _ = self.find(key, worker=worker) or (key, "")
            raise SettingsError(f"{found}=0: expected a whole number from 1, or -1 for the target's default")
        return number


def text_in_names(reader: KeyReader, key: str, default: str) -> str:
    """Return a part of topic names, which may be empty.

    Raises:
        SettingsError: The value has characters that are not valid in topic names.
    """
    text = reader.text(key, default)
    if text and not is_of_topic_characters(text):
        place, _ = reader.find(key) or (key, text)
        raise SettingsError(f"{place}={text}: expected characters that are allowed in topic names: a-z A-Z 0-9 . _ -")
    return text


def aliases_in_names(reader: KeyReader, source: str, target: str) -> tuple[str, str]:
    """Return the aliases of source and target in names of topics, which ``*.cluster.alias`` may replace.

    Raises:
        SettingsError: An alias has characters that are not valid in topic names.
    """
    return text_in_names(reader, "source.cluster.alias", source), text_in_names(reader, "target.cluster.alias", target)


def check_topic(key: str, name: str) -> str:
    """Return a topic name after checking it.

    Raises:
        SettingsError: The value is not a valid topic name.
    """
    try:
        check_topic_name(name)
    except InvalidTopicError as error:
        expected = f"the name of a topic: 1 to {MAX_TOPIC_NAME_LENGTH} of a-z A-Z 0-9 . _ -"
        raise SettingsError(f"{key}={name}: expected {expected}") from error
    return name


class FlowKeys(Mapping[str, str]):
    """Keys of one flow as a mapping, for custom plugins: ``A->B.k`` before ``k``. Keys that are read count as known."""

    def __init__(self, reader: KeyReader) -> None:
        self._reader = reader

    def __getitem__(self, key: str) -> str:
        """Return the value of a key."""
        found = self._reader.find(key)
        if found is None:
            raise KeyError(key)
        return found[1]

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
    module, found, attribute = name.partition(":")
    if not found or name.startswith(JAVA_PACKAGE):
        raise SettingsError(f"{key}={name}: expected one of Kafka's default classes, or module:Class in Python")
    try:
        own = getattr(importlib.import_module(module), attribute)()
        missing = [method for method in methods if not callable(getattr(own, method, None))]
        if not missing and callable(configure := getattr(own, "configure", None)):
            configure(FlowKeys(reader))
    except Exception as error:  # custom code may raise anything
        what = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise SettingsError(f"{key}={name}: cannot be loaded: {what}") from error
    if missing:
        raise SettingsError(f"{key}={name}: expected a class with {', '.join(missing)}")
    return own
