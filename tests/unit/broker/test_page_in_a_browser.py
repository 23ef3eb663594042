"""The broker's status page in a real browser, with hostile names chosen by clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

import klamm
from klamm.admin import (
    AdminClient,
    ClientConfigEntity,
    ClientConfigOp,
    KafkaApiError,
    NewTopic,
    OffsetAndMetadata,
    TopicPartition,
)
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.browser import Browser

pytestmark = pytest.mark.process

EVIL = "<img src=x onerror=alert(1)>"
GROUP = f"/?group={EVIL.replace(' ', '+')}"
CUT_TABLES = "[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth).length"
POLICY = """
from klamm.policy import PolicyViolationError


class Small:
    def validate(self, request):
        if (request.num_partitions or 0) > 12:
            raise PolicyViolationError("at most 12 partitions, <b>please</b>")
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("policy")
    (directory / "page_policy.py").write_text(POLICY)
    address = f"127.0.0.1:{free_port()}"
    config = {"metrics.listen": address, "create.topic.policy.class.name": "page_policy:Small"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        patch.setenv("PYTHONPATH", f"{directory}:{':'.join(sys.path)}")
        with (
            klamm.Broker(config=config) as broker,
            AdminClient(broker.bootstrap_servers) as admin,
            contextlib.closing(filled(broker, admin)),
        ):
            yield address


def filled(broker: klamm.Broker, admin: AdminClient) -> KafkaProducer:
    """Create what the page shows, and return a producer that is connected."""
    topics = [NewTopic(f"orders.{number:02}", 3, 1) for number in range(30)]
    admin.create_topics([*topics, NewTopic("set", 1, 1, configs={"retention.ms": "4711"})]).all().result()
    with pytest.raises(KafkaApiError):
        admin.create_topics([NewTopic("large", 13, 1)]).all().result()
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, client_id=EVIL, enable_idempotence=False, acks=1
    )
    for _ in range(5):
        producer.send("set", b"x" * 1000).get(30)
    admin.alter_client_configs({ClientConfigEntity.of_user(None): [ClientConfigOp("acks", "all")]}).all().result()
    admin.alter_group_offsets(EVIL, {TopicPartition("set", 0): OffsetAndMetadata(2)}).all().result()
    return producer


@pytest.mark.parametrize(
    ("width", "dark", "path"),
    [
        (1400, False, "/"),
        (500, True, "/"),
        (390, False, "/"),
        (390, False, GROUP),
        pytest.param(1400, False, "/?topic=set", marks=pytest.mark.long),
        pytest.param(390, True, "/?topic=set", marks=pytest.mark.long),
        pytest.param(500, True, "/?topic=set", marks=pytest.mark.long),
        pytest.param(390, False, "/?topic=set", marks=pytest.mark.long),
        pytest.param(1400, False, GROUP, marks=pytest.mark.long),
        pytest.param(500, True, GROUP, marks=pytest.mark.long),
    ],
)
def test_page_fits_the_screen_and_runs_no_script(
    width: int, path: str, *, dark: bool, address: str, browser: Browser, tmp_path: Path
) -> None:
    # when
    page = browser.open(f"http://{address}{path}", width=width, dark=dark)
    # then
    assert page.evaluate("document.documentElement.scrollWidth") == width, page.screenshot(tmp_path / "page.png")
    assert page.evaluate(CUT_TABLES) == 0
    assert page.evaluate("document.images.length") == 0
    assert page.errors == []
    page.close()


def test_overview_shows_topics_groups_clients_policies_and_warnings(address: str, browser: Browser) -> None:
    # when
    page = browser.open(f"http://{address}/", width=1400)
    text = page.text()
    # then
    assert "1 to 25 of" in text
    assert f"{EVIL}\tEmpty\t0\t1\t3" in text
    assert f"User:ANONYMOUS {EVIL}" in text
    assert "acks=1\tacks=all\tnever registered\tignores acks" in text
    assert "create.topic\tenforce\tdeny\t1" in text
    assert "at most 12 partitions, <b>please</b>" in text
    assert "1 connected client cannot take configs that are set for them" in text
    # when
    page.evaluate("document.querySelector('nav.pages a').click()")
    page.wait_for("document.body?.innerText.includes('26 to ')")
    # then
    assert "retention.ms=4711" in page.text()
    page.close()


def test_filter_finds_topic_with_partitions_and_configs(address: str, browser: Browser) -> None:
    # given
    page = browser.open(f"http://{address}/", width=1400)
    # when
    page.evaluate("document.querySelector('input[name=q]').value = 'SET'")
    page.evaluate("document.querySelector('form').submit()")
    page.wait_for("location.search === '?q=SET' && document.readyState === 'complete'")
    # then
    assert page.evaluate("[...document.querySelectorAll('td a')].map(link => link.textContent)") == [
        "set",
        "__consumer_offsets",
    ]
    # when
    page.evaluate("[...document.querySelectorAll('td a')].find(link => link.textContent === 'set').click()")
    page.wait_for("document.body?.innerText.includes('Topic set')")
    # then
    text = page.text()
    assert "0\t1\t1\t0\t5\t" in text
    assert "retention.ms\t4711\ttopic" in text
    assert "cleanup.policy\tdelete\tdefault" in text
    page.close()


def get(address: str, path: str, method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path)
    return connection.getresponse()


@pytest.mark.parametrize(
    "path", ["/?topic=none", "/?group=none", "/?tp=99&gp=x&cp=-1&q=%FF%00", "/?topic=", "/?tp=" + "9" * 50]
)
def test_any_query_returns_a_page(path: str, address: str) -> None:
    answer = get(address, path)
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")


def test_documents_contain_the_values_of_the_page(address: str) -> None:
    (client,) = [each for each in json.load(get(address, "/clients.json"))["clients"] if each["client_id"] == EVIL]
    assert (client["reported"], client["effective"]) == ({"acks": "1"}, {"acks": "all"})
    assert {"policy": "create.topic", "mode": "enforce", "action": "deny", "count": 1} in json.load(
        get(address, "/policies.json")
    )["decisions"]
    (topic,) = json.load(get(address, "/topics.json?topic=set"))["topics"]
    assert {config["name"]: config["origin"] for config in topic["configs"]}["retention.ms"] == "topic"
    listed = json.load(get(address, "/topics.json?q=orders"))
    assert (listed["total"], len(listed["topics"]), listed["topics"][0]["configs"]) == (30, 30, [])


def test_status_page_is_read_only(address: str) -> None:
    assert get(address, "/", "POST").status == 405
    assert get(address, "/other").status == 404
    assert get(address, "/", "HEAD").read() == b""


def test_page_lists_latest_changes_and_topics_of_users_first(address: str, browser: Browser) -> None:
    # when
    page = browser.open(f"http://{address}/")
    topics = json.load(get(address, "/topics.json"))["topics"]
    # then
    names = [topic["name"] for topic in topics]
    assert names == sorted(names, key=lambda name: (name.startswith("__"), name))
    assert names[-1] == "__consumer_offsets"
    rows = "[...document.querySelectorAll('#latest-changes')].map(h => h.parentElement.textContent).join()"
    assert "acks" in page.evaluate(rows)
    assert "all" in page.evaluate(rows)
