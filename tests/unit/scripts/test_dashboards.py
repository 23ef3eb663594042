"""Dashboards and alerts in examples/monitoring use only metrics and labels that a running program exports."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

import pytest
import yaml

from klamm.admin import AdminClient, NewTopic, OffsetAndMetadata, TopicPartition
from klamm.embedded.broker import Broker
from klamm.embedded.gateway import Gateway
from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.status.metrics import metrics_page
from klamm.protocol.errors import KafkaApiError
from scripts.dashboards import PANELS, text_of
from tests.support.mirror_status import progress_row
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

MONITORING = Path(__file__).parents[3] / "examples" / "monitoring"
NAME: Final = re.compile(r"\b(?:klamm|kafka_connect|process)_\w+")
POLICY: Final = {"create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy"}
LABEL_USE: Final = re.compile(r'(\w+)(?:=~|!~|!=|=)"')
RARE: Final[Mapping[str, Set[str]]] = {"klamm_gateway_bypassing_members": {"client_id"}}
"""Labels of a metric that is exported only while there are such members."""
OF_PROMETHEUS: Final = {"job", "instance"}
"""Labels that Prometheus adds to each metric that it scrapes."""
RULES: Final = "rules:\n  - name: small\n    partitions: {max: 3}\n"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, set[str]]]]:
    """Labels of the metric families of each program, by family."""
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    policy = {**POLICY, "policy.rules.file": str(rules)}
    broker_metrics, gateway_metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with (
        Broker(config={"metrics.listen": broker_metrics, **policy}) as broker,
        Broker() as plain,
        Gateway(
            plain.bootstrap_servers,
            config={"metrics.listen": gateway_metrics, "change.history.enable": True, **policy},
        ) as gateway,
        AdminClient(bootstrap_servers=broker.bootstrap_servers) as of_broker,
        AdminClient(bootstrap_servers=gateway.bootstrap_servers) as of_gateway,
    ):
        use(of_broker)
        use(of_gateway)
        send_garbage(gateway.bootstrap_servers)
        yield {
            "broker": families(urlopen(f"http://{broker_metrics}/metrics", timeout=30).read().decode()),
            "gateway": families(urlopen(f"http://{gateway_metrics}/metrics", timeout=30).read().decode()),
            "mirror": families(mirror_metrics()),
        }


def use(admin: AdminClient) -> None:
    """Let a server count requests, an error and a group."""
    admin.create_topics([NewTopic("t", 1)]).result()
    admin.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0)}).result()
    with pytest.raises(KafkaApiError):
        admin.describe_topics(["missing"]).result()


def send_garbage(address: str) -> None:
    """Send bytes that are not a request, and wait until the connection is closed."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"\xff" * 8)
        with contextlib.suppress(ConnectionResetError):
            connection.recv(1)


def mirror_metrics() -> str:
    status = MirrorStatus(["A->B"])
    ages = (1.0, 0.5, 9.0, 2.0)
    status.update("one", [progress_row(records=1, record_age=ages, replication_latency=ages)])
    status.set_drift("A->B", ())
    return metrics_page(status.snapshot(), status.drift()).text()


def families(text: str) -> dict[str, set[str]]:
    labels: dict[str, set[str]] = {name: set() for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    for name, written in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        labels.setdefault(family_of(name), set()).update(LABEL_USE.findall(written))
    return labels


def alert_rules() -> list[dict[str, Any]]:
    rules: Any = yaml.safe_load((MONITORING / "prometheus-rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in rules["groups"] for rule in group["rules"]]


def family_of(name: str) -> str:
    return name.removesuffix("_bucket")


def unknown_names(expression: str, shown: Set[str], exported: Mapping[str, Set[str]]) -> set[str]:
    """Return the metrics and labels that an expression and the text for its result use, but that are not exported.

    Args:
        expression: Expression in PromQL.
        shown: Labels in the text for its result.
        exported: Labels of the metric families, by family.
    """
    names = {family_of(name) for name in NAME.findall(expression)}
    labels = OF_PROMETHEUS.union(*(exported.get(name, ()) for name in names))
    grouped = {label for each in re.findall(r"\bby \(([^)]*)\)", expression) for label in each.split(", ")}
    used = {*LABEL_USE.findall(expression), *grouped}
    return (names - exported.keys()) | (used - labels) | (shown - (grouped or labels))


@pytest.mark.process
@pytest.mark.parametrize("program", PANELS)
def test_panels_use_exported_metrics_and_labels(program: str, exported: dict[str, dict[str, set[str]]]) -> None:
    known = {**exported[program], **RARE}
    unknown = {
        title: names
        for title, expression, _, legend in PANELS[program]
        if (names := unknown_names(expression, set(re.findall(r"\{\{(\w+)\}\}", legend)), known))
    }
    assert not unknown


@pytest.mark.process
def test_alerts_use_exported_metrics_and_labels(exported: dict[str, dict[str, set[str]]]) -> None:
    known = {**exported["broker"], **exported["gateway"], **exported["mirror"], **RARE}
    rules = alert_rules()
    unknown = {
        rule["alert"]: names
        for rule in rules
        if (names := unknown_names(rule["expr"], set(re.findall(r"\$labels\.(\w+)", str(rule))), known))
    }
    assert len(rules) == 12
    assert not unknown


@pytest.mark.parametrize("program", PANELS)
def test_an_alert_covers_a_program_that_has_ended(program: str) -> None:
    jobs = [job for rule in alert_rules() for job in re.findall(r'\bup\{job=~"([^"]+)"\}', rule["expr"])]
    assert any(re.fullmatch(job, f"klamm-{program}") for job in jobs)


@pytest.mark.parametrize("program", PANELS)
def test_dashboard_files_are_up_to_date(program: str) -> None:
    text = (MONITORING / f"grafana-{program}.json").read_text(encoding="utf-8")
    assert text == text_of(program), "run python scripts/dashboards.py"
    assert all(panel["targets"][0]["expr"] for panel in json.loads(text)["panels"])
