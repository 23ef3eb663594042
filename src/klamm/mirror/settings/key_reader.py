"""Looking up the keys of one flow in ``mm2.properties``, each by its precedence."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from klamm.configs.names import MAX_TOPIC_NAME_LENGTH, check_topic_name
from klamm.mirror.filters import PatternList
from klamm.mirror.settings import keys
from klamm.properties import SettingsError, parse_int, with_prefix
from klamm.protocol.errors import InvalidTopicError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

JAVA_PACKAGE: Final = "org.apache.kafka.connect.mirror."


_FROM_TOP: Final = keys.POSITIONS_TOPIC
"""Keys of Connect's worker that MirrorMaker takes from the top level of the file, rather than from ``B.``."""


class KeyReader:
    """Looks keys up by precedence: ``A->B.k``, then ``k``.

    Keys of Connect's worker are looked up as ``MirrorMakerConfig.workerConfig`` does: ``B.k`` alone, but
    ``offset.storage.*`` first at top level. Where it finds nothing, ``A->B.k`` and ``k`` count here, in this order.
    """

    def __init__(self, properties: Mapping[str, str], source: str, target: str) -> None:
        self._properties = properties
        self._flow = f"{source}->{target}."
        self._target = f"{target}."

    def find(self, key: str, *, worker: bool = False) -> tuple[str, str] | None:
        """Return the full key and its value, None when the file does not say."""
        prefixes: tuple[str, ...] = (self._flow, "")
        if worker:
            prefixes = ("", self._target, self._flow) if key.startswith(_FROM_TOP) else (self._target, self._flow, "")
        for prefix in prefixes:
            if (value := self._properties.get(prefix + key)) is not None:
                return prefix + key, value.strip()
        return None

    def find_in_flow(self, key: str) -> tuple[str, str] | None:
        """Return the full key and its value as they stand at ``A->B.k``, where alone some keys count."""
        value = self._properties.get(self._flow + key)
        return None if value is None else (self._flow + key, value.strip())

    def of_worker(self, prefix: str) -> dict[str, str]:
        """Return what the file says of keys of Connect's worker that begin so, by what follows."""
        places = (prefix, self._target + prefix, self._flow + prefix)
        names = {name for place in places for name in with_prefix(self._properties, place)}
        return {name: self.text(prefix + name, "", worker=True) for name in sorted(names)}

    def all_keys(self) -> frozenset[str]:
        """Return all keys of the file, those of the flow without ``A->B.`` before them."""
        return frozenset({*self._properties, *with_prefix(self._properties, self._flow)})

    def boolean(self, key: str, default: bool) -> bool:
        """Return true or false; ``SettingsError`` names the key as it stands in the file, as in all of these."""
        found = self.find(key)
        return keys.parse_bool(*found) if found else default

    def integer(self, key: str, default: int, *, at_least: int, worker: bool = False) -> int:
        """Return a whole number."""
        found = self.find(key, worker=worker)
        return parse_int(*found, at_least=at_least) if found else default

    def seconds(self, key: str, default: int) -> timedelta:
        """Return a number of seconds, at least 1."""
        found = self.find(key)
        return keys.parse_seconds(*found) if found else timedelta(seconds=default)

    def choice(self, key: str, default: keys.Choice) -> keys.Choice:
        """Return one of the values of the default's enum."""
        found = self.find(key)
        return keys.parse_choice(*found, type(default)) if found else default

    def text(self, key: str, default: str, *, worker: bool = False) -> str:
        """Return the text as it is."""
        found = self.find(key, worker=worker)
        return found[1] if found else default

    def topic(self, key: str, default: str, *, worker: bool = False) -> str:
        """Return the name of a topic.

        Raises:
            SettingsError: no topic can be called so.
        """
        found = self.find(key, worker=worker)
        return check_topic(*found) if found else default

    def patterns(self, key: str, default: tuple[str, ...], *, old_key: str | None = None) -> PatternList:
        """Return a list of regular expressions; ``old_key`` is what the key was called once."""
        found = self.find(key) or (self.find(old_key) if old_key else None)
        if found is None:
            return PatternList.compile(key, default)
        return PatternList.compile(found[0], keys.parse_list(found[1]))

    def replication_factor(self, key: str, default: int, *, worker: bool = False) -> int:
        """Return a replication factor: from 1, or -1 for the cluster's default.

        Raises:
            SettingsError: any other value.
        """
        factor = self.integer(key, default, at_least=-1, worker=worker)
        if factor == 0:
            found, _ = self.find(key, worker=worker) or (key, "")
            raise SettingsError(f"{found}=0: expected a whole number from 1, or -1 for the target's default")
        return factor


def check_topic(key: str, name: str) -> str:
    """Return the name of a topic.

    Raises:
        SettingsError: no topic can be called so.
    """
    try:
        check_topic_name(name)
    except InvalidTopicError as error:
        expected = f"the name of a topic: 1 to {MAX_TOPIC_NAME_LENGTH} of a-z A-Z 0-9 . _ -"
        raise SettingsError(f"{key}={name}: expected {expected}") from error
    return name


class FlowKeys(Mapping[str, str]):
    """What a file says to one flow, for classes of the user's: ``A->B.k`` over ``k``; what they ask for is known."""

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
        """Return how many keys there are."""
        return len(self._reader.all_keys())


def own_class(reader: KeyReader, key: str, name: str, methods: Collection[str]):  # type: ignore[no-untyped-def]
    """Make an object of a class of the user's, named ``module:Class``.

    Where it has a method ``configure`` it is called once with the flow's keys, as Kafka does with its plugins.

    Args:
        reader: the flow's keys.
        key: where the class is named.
        name: what stands there.
        methods: what the class must have.

    Raises:
        SettingsError: it can not be loaded, made or configured, or lacks a method.
    """
    module, found, attribute = name.partition(":")
    if not found or name.startswith(JAVA_PACKAGE):
        raise SettingsError(f"{key}={name}: expected one of Kafka's default classes, or module:Class in Python")
    try:
        own = getattr(importlib.import_module(module), attribute)()
        missing = [method for method in methods if not callable(getattr(own, method, None))]
        if not missing and callable(configure := getattr(own, "configure", None)):
            configure(FlowKeys(reader))
    except Exception as error:  # whatever a user's code raises
        what = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise SettingsError(f"{key}={name}: cannot be loaded: {what}") from error
    if missing:
        raise SettingsError(f"{key}={name}: expected a class with {', '.join(missing)}")
    return own
