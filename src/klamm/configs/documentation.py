"""One-sentence documentation of each config. Separate from the tables because it is read only on request."""

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
"""Documentation texts. There is one section per resource type; each line is a name, `` = `` and a sentence."""

_SECTIONS: Final = {
    ResourceType.TOPIC: "topic",
    ResourceType.BROKER: "broker",
    ResourceType.GROUP: "group",
    ResourceType.CLIENT_METRICS: "client-metrics",
}


def documentation(resource_type: int, name: str) -> str | None:
    """Return a sentence that documents a config, or None if there is no documentation."""
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
