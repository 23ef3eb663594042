"""Dashboards and alerts in examples/monitoring use only metrics that a running program exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

import pytest
import yaml

from klamm.embedded.broker import Broker
from klamm.embedded.gateway import Gateway
from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.status.metrics import metrics_page
from scripts.dashboards import PANELS, text_of
from tests.support.mirror_status import progress_row
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

MONITORING = Path(__file__).parents[3] / "examples" / "monitoring"
NAME: Final = re.compile(r"\b(?:klamm|kafka_connect|process)_\w+")
POLICY: Final = {"create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy"}
RARE: Final = {"klamm_gateway_bypassing_members"}
"""Exported only while there are such members."""
RULES: Final = "rules:\n  - name: small\n    partitions: {max: 3}\n"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Names of the metric families of each program."""
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
    ):
        assert broker.bootstrap_servers
        assert gateway.bootstrap_servers
        yield {
            "broker": families(urlopen(f"http://{broker_metrics}/metrics", timeout=30).read().decode()),
            "gateway": families(urlopen(f"http://{gateway_metrics}/metrics", timeout=30).read().decode()),
            "mirror": families(mirror_metrics()),
        }


def mirror_metrics() -> str:
    status = MirrorStatus(["A->B"])
    ages = (1.0, 0.5, 9.0, 2.0)
    status.update("one", [progress_row(record_age=ages, replication_latency=ages)])
    return metrics_page(status.snapshot(), status.drift()).text()


def families(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def alert_expressions() -> list[str]:
    rules: Any = yaml.safe_load((MONITORING / "prometheus-rules.yaml").read_text(encoding="utf-8"))
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def family_of(name: str) -> str:
    return name.removesuffix("_bucket")


@pytest.mark.process
@pytest.mark.parametrize("program", PANELS)
def test_panels_use_exported_metrics(program: str, exported: dict[str, set[str]]) -> None:
    names = {family_of(name) for _, expression, _, _ in PANELS[program] for name in NAME.findall(expression)}
    assert names - exported[program] <= RARE


@pytest.mark.process
def test_alerts_use_exported_metrics(exported: dict[str, set[str]]) -> None:
    expressions = alert_expressions()
    names = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(expressions) == 12
    assert names - set().union(*exported.values()) <= RARE


@pytest.mark.parametrize("program", PANELS)
def test_an_alert_covers_a_program_that_has_ended(program: str) -> None:
    jobs = [job for expression in alert_expressions() for job in re.findall(r'\bup\{job=~"([^"]+)"\}', expression)]
    assert any(re.fullmatch(job, f"klamm-{program}") for job in jobs)


@pytest.mark.parametrize("program", PANELS)
def test_dashboard_files_are_up_to_date(program: str) -> None:
    text = (MONITORING / f"grafana-{program}.json").read_text(encoding="utf-8")
    assert text == text_of(program), "run python scripts/dashboards.py"
    assert all(panel["targets"][0]["expr"] for panel in json.loads(text)["panels"])
