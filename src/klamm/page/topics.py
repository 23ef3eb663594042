"""Topics and their configs on the page, drawn from the documents of ``/topics.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from klamm.configs.durations import value_in_words
from klamm.page.html import ROWS, Cell, Table, link_to, section, short, table
from klamm.protocol.types import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.page.html import Query
    from klamm.page.views import Document

    Fact = tuple[str, str, Callable[[Document], str]]
    """Title and CSS classes of a column, and a function from the document of a topic to its text."""


class ShownConfig(Protocol):
    """A described config."""

    @property
    def name(self) -> str:
        """Name of the config."""
        ...

    @property
    def value(self) -> str | None:
        """Value in force; None if it is a secret or has none."""
        ...

    @property
    def source(self) -> ConfigSource:
        """Source of the value."""
        ...

    @property
    def is_sensitive(self) -> bool:
        """Return whether the value is a secret."""
        ...


def is_internal_name(name: str) -> bool:
    """Return whether a topic belongs to Kafka or klamm. The page lists such topics after those of users."""
    return name.startswith("__")


def config_documents(configs: Iterable[ShownConfig]) -> list[Document]:
    """Return configs as JSON objects, those of the topic first. Values of sensitive configs are left out."""
    documents: list[dict[str, Any]] = [
        {
            "name": config.name,
            "value": None if config.is_sensitive else config.value,
            "origin": ConfigSource(config.source).origin,
            "is_own": config.source == ConfigSource.DYNAMIC_TOPIC_CONFIG,
            "is_sensitive": config.is_sensitive,
        }
        for config in configs
    ]
    return sorted(documents, key=lambda each: (not each["is_own"], each["name"]))


def topics_document(topics: Sequence[Document], *, total: int, first: int, at_ms: int) -> Document:
    """Return the document of ``GET /topics.json``: one page of the topics."""
    return {"version": 0, "at_ms": at_ms, "total": total, "first": first, "topics": list(topics)}


def topics_section(document: Document, query: Query, *, facts: Sequence[Fact], note: str = "") -> str:
    """Return the part of the page with a page of the topics.

    Args:
        document: Document of the topics. ``configs`` of a topic is None while they are unknown.
        query: Query of the page; ``tp`` is the number of the page.
        facts: Columns between the number of partitions and the configs.
        note: Plain text above the table; empty for none.
    """
    topics = document["topics"]
    content = Table(
        heads=[
            ("Topic", ""), ("Partitions", "number"), *((title, kind) for title, kind, _ in facts),
            ("Configs of the topic", "extra"),
        ],
        rows=[
            (
                Cell(topic["name"], link_to({"topic": topic["name"]}), "name"),
                Cell("-" if topic["partitions"] is None else f"{topic['partitions']:,}", kind="number"),
                *(Cell(text_of(topic), kind=kind) for _, kind, text_of in facts),
                Cell(_own(topic), kind="extra"),
            )
            for topic in topics
        ],
        total=document["total"],
        first=document["first"],
        size=ROWS,
        parameter="tp",
        empty="No topic has this in its name." if query.get("q") else "No topic.",
    )  # fmt: skip
    return section("Topics", table(content, query), note=note)


def _own(topic: Document) -> str:
    own = [each for each in topic["configs"] or () if each["is_own"]]
    return ", ".join(f"{each['name']}={_words(each) or _value(each)}" for each in own) or "-"


def configs_section(configs: Sequence[Document], query: Query) -> str:
    """Return the part of the page with all configs of one topic: value and origin."""
    content = Table(
        heads=[("Config", ""), ("Value", ""), ("Origin", "")],
        rows=[
            (
                Cell(each["name"], kind="name"),
                _value_cell(each),
                Cell(each["origin"], kind="good" if each["is_own"] else ""),
            )
            for each in configs
        ],
        total=len(configs),
    )
    return section("Configs", table(content, query))


def _value_cell(config: Document) -> Cell:
    """Return a value in words, followed by the value itself."""
    words = _words(config)
    return Cell(_value(config)) if words is None else Cell(words, exact=_value(config))


def _words(config: Document) -> str | None:
    value = None if config["is_sensitive"] else config["value"]
    return None if value is None else value_in_words(config["name"], str(value))


def _value(config: Document) -> str:
    if config["is_sensitive"]:
        return "(hidden)"
    return "-" if config["value"] is None else str(config["value"])


def missing_topic(name: str) -> str:
    """Return the page of a topic that does not exist."""
    return section(f"Topic {short(name)}", '<p class="soft">There is no such topic.</p>')
