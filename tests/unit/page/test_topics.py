"""Topics on the page: configs with value and origin, and no secrets."""

from __future__ import annotations

import json
from typing import Any

from klamm.admin import ConfigEntry
from klamm.page.topics import config_documents, configs_section, missing_topic, topics_document, topics_section
from klamm.page.views import json_view
from klamm.protocol.types import ConfigSource

HOSTILE = '<script>alert("x")</script>\x1b[2J&'
CONFIGS = config_documents(
    [
        ConfigEntry("cleanup.policy", "delete", source=ConfigSource.DEFAULT_CONFIG),
        ConfigEntry("password", "hunter2", source=ConfigSource.STATIC_BROKER_CONFIG, is_sensitive=True),
        ConfigEntry("retention.ms", HOSTILE, source=ConfigSource.DYNAMIC_TOPIC_CONFIG),
    ]
)


def test_own_configs_come_first_with_their_origin() -> None:
    assert [(each["name"], each["origin"]) for each in CONFIGS] == [
        ("retention.ms", "topic"),
        ("cleanup.policy", "default"),
        ("password", "server.properties"),
    ]


def test_secret_is_hidden_on_page_and_in_document() -> None:
    html = configs_section(CONFIGS, {})
    assert "hunter2" not in html + json.dumps(CONFIGS)
    assert "(hidden)" in html


def test_names_and_values_are_escaped() -> None:
    topic = {"name": HOSTILE, "partitions": 3, "state": HOSTILE, "configs": CONFIGS}
    document = topics_document([topic], total=60, first=0, at_ms=7)
    # when
    html = topics_section(document, {"q": HOSTILE}, facts=[("State", "", lambda each: each["state"])], note=HOSTILE)
    # then
    for part in (html, configs_section(CONFIGS, {}), missing_topic(HOSTILE)):
        assert "<script" not in part
        assert "\x1b" not in part
    assert "1 to 1 of 60" in html


async def test_document_is_plain_ascii_json() -> None:
    async def document(_query: object) -> dict[str, Any]:
        return {"version": 0, "topics": [{"name": "\ud800 ä"}], "none": []}

    content_type, text = await json_view(document)({})
    assert content_type == "application/json"
    assert text.isascii()
    assert json.loads(text) == {"version": 0, "topics": [{"name": "\ud800 ä"}], "none": []}


def test_values_are_shown_in_words() -> None:
    # given
    configs = config_documents([ConfigEntry("retention.ms", "604800000", source=ConfigSource.DYNAMIC_TOPIC_CONFIG)])
    topic = {"name": "a", "partitions": 1, "configs": configs}
    # when
    overview = topics_section(topics_document([topic], total=1, first=0, at_ms=0), {}, facts=[])
    # then
    assert "retention.<wbr>ms=<wbr>7 days" in overview
    assert '7 days <span class="soft extra">604800000</span>' in configs_section(configs, {})
