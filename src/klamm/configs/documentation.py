"""What each config is for, in a sentence. Kept apart from the tables: it is read only when somebody asks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import base_name
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXTS: Final = Path(__file__).with_suffix(".txt")
"""One section per kind of resource; a line is the name, `` = `` and the sentence."""

_SECTIONS: Final = {
    ResourceType.TOPIC: "topic",
    ResourceType.BROKER: "broker",
    ResourceType.GROUP: "group",
    ResourceType.CLIENT_METRICS: "client-metrics",
}


def documentation(resource_type: int, name: str) -> str | None:
    """Return a sentence about a config; None when nothing is known about it."""
    texts = _texts().get(resource_type)
    if texts is None:
        return None
    return texts.get(name) or (texts.get(base_name(name)) if resource_type == ResourceType.BROKER else None)


@cache
def _texts() -> Mapping[int, Mapping[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in TEXTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line:
            name, _, sentence = line.partition(" = ")
            current[name] = sentence
    return MappingProxyType({kind: MappingProxyType(sections[section]) for kind, section in _SECTIONS.items()})
