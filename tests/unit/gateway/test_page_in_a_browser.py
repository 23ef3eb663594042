"""The gateway's page as people see it: in a real browser, with names that clients chose to do harm."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer

import klamm
from klamm.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.browser import Browser

pytestmark = pytest.mark.process

EVIL = "<img src=x onerror=alert(1)>"
POLICY = f"""
from klamm.policy import PolicyViolationError


class Small:
    def validate(self, request):
        if (request.num_partitions or 0) > 12:
            raise PolicyViolationError("Rule 'size {EVIL}': at most 12 partitions, <b>please</b>")
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("policy")
    (directory / "gateway_page_policy.py").write_text(POLICY)
    config = {
        "metrics.listen": "127.0.0.1:0",
        "create.topic.policy.class.name": "gateway_page_policy:Small",
        "create.topic.policy.mode": "audit",
        "bypass.known.hosts": "10.0.0.7",
        "change.history.enable": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        patch.setenv("PYTHONPATH", f"{directory}:{':'.join(sys.path)}")
        with (
            klamm.Broker(brokers=2) as broker,
            klamm.Gateway(broker.bootstrap_servers, config=config) as gateway,
            AdminClient(gateway.bootstrap_servers) as admin,
        ):
            topics = [NewTopic(f"orders.{number:02}", 1, 1) for number in range(30)]
            admin.create_topics([*topics, NewTopic("large", 13, 1)]).all().result()
            admin.create_topics([NewTopic("set", 1, 1, configs={"retention.ms": "4711"})]).all().result()
            producer = KafkaProducer(bootstrap_servers=gateway.bootstrap_servers, client_id=EVIL)
            producer.send("set", b"x").get(30)
            yield gateway.log_text().partition("Metrics on http://")[2].partition("/")[0]
            producer.close()


@pytest.mark.parametrize(("width", "dark", "path"), [(1400, False, "/"), (390, True, "/"), (390, False, "/?topic=set")])
def test_page_fits_screen_and_runs_no_script(
    width: int, path: str, *, dark: bool, address: str, browser: Browser, tmp_path: Path
) -> None:
    # when
    page = browser.open(f"http://{address}{path}", width=width, dark=dark)
    # then
    assert page.evaluate("document.documentElement.scrollWidth") == width, page.screenshot(tmp_path / "page.png")
    assert page.evaluate("document.images.length") == 0
    assert page.errors == []
    assert {url.partition("?")[0] for url in page.requests} <= {f"http://{address}/", "data:,"}
    page.close()


def test_overview_leads_from_brokers_clients_and_policies_to_the_configs_of_a_topic(
    address: str, browser: Browser
) -> None:
    # when
    page = browser.open(f"http://{address}/", width=1400)
    text = page.text()
    # then
    assert "(this one)\tready" in text
    assert "10.0.0.7\tsee its own page" in text
    assert text.count("\tup\t") == 2
    assert f"User:ANONYMOUS {EVIL}\t127.0.0.1\t" in text
    assert "create.topic\taudit\twould deny\t1" in text
    assert f"size {EVIL}\tcreate.topic\twould deny\t1" in text
    assert "at most 12 partitions, <b>please</b>" in text
    assert "large\t13\tin sync" in text
    assert "1 to 25 of 3" in text
    # when
    page.evaluate("document.querySelector('input[name=q]').value = 'SET'")
    page.evaluate("document.querySelector('form').submit()")
    page.wait_for("location.search === '?q=SET' && document.readyState === 'complete'")
    assert "set\t1\tin sync\tretention.ms=4711" in page.text()
    page.evaluate("[...document.querySelectorAll('td a')].find(link => link.textContent === 'set').click()")
    page.wait_for("document.body?.innerText.includes('Topic set')")
    # then
    assert "retention.ms\t4711\ttopic" in page.text()
    assert "cleanup.policy\tdelete\tdefault" in page.text()
    page.close()


def test_overview_shows_the_latest_changes(address: str, browser: Browser) -> None:
    # when
    page = browser.open(f"http://{address}/", width=1400)
    text = page.text().partition("Latest changes")[2]
    # then
    assert "\tTOPIC:set\tretention.ms\tunset\t" in text
    assert "\tTOPIC:large\tpartitions\tunset\t13\tUser:ANONYMOUS" in text
    page.close()


def fetched(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        return json.load(answer)


def test_documents_contain_values_of_page(address: str) -> None:
    gateway = fetched(address, "/gateway.json")
    assert [broker["state"] for broker in gateway["brokers"]] == ["up", "up"]
    assert sum(broker["opened"] for broker in gateway["brokers"]) > 0
    assert gateway["upstream"]["is_reachable"]
    decided = fetched(address, "/policies.json")["latest_audited"]
    assert [(each["action"], each["subject"]) for each in decided] == [("deny", "'large'")]
    (topic,) = fetched(address, "/topics.json?topic=set")["topics"]
    origins = {config["name"]: config["origin"] for config in topic["configs"]}
    assert (origins["retention.ms"], origins["cleanup.policy"]) == ("topic", "default")
    assert fetched(address, "/topics.json?topic=none")["topics"] == []


@pytest.mark.parametrize("path", ["/?topic=none", "/?tp=99&cp=-1&bp=x&q=%FF%00", "/?topic=", "/?tp=" + "9" * 50])
def test_any_query_has_an_answer(path: str, address: str) -> None:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        assert answer.status == 200
