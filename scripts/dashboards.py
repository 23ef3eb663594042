"""Write the Grafana dashboards in examples/monitoring from the tables below: ``python scripts/dashboards.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

TARGET: Final = Path(__file__).parents[1] / "examples" / "monitoring"
_WIDTH: Final = 12
_HEIGHT: Final = 8
_MIRROR: Final = "kafka_connect_mirror_mirrorsourceconnector"

PANELS: Final[dict[str, tuple[tuple[str, str, str, str], ...]]] = {
    "broker": (
        ("Requests", "sum by (api) (rate(klamm_requests_total[$__rate_interval]))", "reqps", "{{api}}"),
        (
            "Request time, 99th percentile",
            "histogram_quantile(0.99, "
            "sum by (api, le) (rate(klamm_request_duration_seconds_bucket[$__rate_interval])))",
            "s",
            "{{api}}",
        ),
        (
            "Errors",
            "sum by (api, error) (rate(klamm_request_errors_total[$__rate_interval]))",
            "reqps",
            "{{api}} {{error}}",
        ),
        ("Connections", "klamm_connections", "short", "{{instance}}"),
        ("Received", "rate(klamm_received_bytes_total[$__rate_interval])", "Bps", "{{instance}}"),
        ("Sent", "rate(klamm_sent_bytes_total[$__rate_interval])", "Bps", "{{instance}}"),
        (
            "Policy decisions other than allow",
            'sum by (policy, action) (increase(klamm_policy_decisions_total{action!="allow"}[$__rate_interval]))',
            "short",
            "{{policy}} {{action}}",
        ),
        ("Groups", "sum by (state) (klamm_groups)", "short", "{{state}}"),
        ("Offline partitions", "klamm_offline_partitions", "short", "{{instance}}"),
        ("CPU", "rate(process_cpu_seconds_total[$__rate_interval])", "percentunit", "{{instance}}"),
    ),
    "gateway": (
        ("Requests", "sum by (api) (rate(klamm_gateway_requests_total[$__rate_interval]))", "reqps", "{{api}}"),
        (
            "Clients with the most requests",
            "topk(10, sum by (client_id) (rate(klamm_gateway_requests_total[$__rate_interval])))",
            "reqps",
            "{{client_id}}",
        ),
        (
            "Bytes",
            "sum by (direction) (rate(klamm_gateway_bytes_total[$__rate_interval]))",
            "Bps",
            "{{direction}}",
        ),
        ("Connections", "sum by (node_id) (klamm_gateway_upstream_connections)", "short", "to broker {{node_id}}"),
        (
            "Connections that the gateway closed",
            "sum by (reason) (increase(klamm_gateway_rejected_connections_total[$__rate_interval]))",
            "short",
            "{{reason}}",
        ),
        (
            "Policy decisions other than allow",
            'sum by (policy, action) (increase(klamm_policy_decisions_total{action!="allow"}[$__rate_interval]))',
            "short",
            "{{policy}} {{action}}",
        ),
        ("Kept bytes", "sum by (kind) (klamm_gateway_kept_bytes)", "bytes", "{{kind}}"),
        (
            "Members that bypass the gateway",
            "sum by (client_id) (klamm_gateway_bypassing_members)",
            "short",
            "{{client_id}}",
        ),
    ),
    "mirror": (
        ("Records", f"sum by (source, target) ({_MIRROR}_record_rate)", "short", "{{source}}->{{target}}"),
        ("Bytes", f"sum by (source, target) ({_MIRROR}_byte_rate)", "Bps", "{{source}}->{{target}}"),
        ("Lag", f"topk(10, sum by (topic) ({_MIRROR}_record_lag))", "short", "{{topic}}"),
        (
            "Latency, newest 30 to 60 s",
            f"max by (source, target) ({_MIRROR}_replication_latency_ms_max)",
            "ms",
            "{{source}}->{{target}}",
        ),
        ("Stopped partitions", "klamm_mirror_stopped_partitions", "short", "{{source}}->{{target}}"),
        ("Rejected topics", "klamm_mirror_rejected_topics", "short", "{{source}}->{{target}}"),
        ("Configs that differ", "klamm_mirror_config_drift_keys", "short", "{{source}}->{{target}}"),
        (
            "Time since the last progress",
            "time() - klamm_mirror_last_progress_timestamp_seconds",
            "s",
            "{{source}}->{{target}}",
        ),
    ),
}
"""Title, expression, unit and legend of each panel, by program."""


def dashboard(program: str) -> dict[str, Any]:
    """Return the dashboard of a program, in Grafana's JSON model."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "title": f"klamm {program}",
        "uid": f"klamm-{program}",
        "tags": ["klamm"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [
            {
                "id": number + 1,
                "type": "timeseries",
                "title": title,
                "datasource": source,
                "gridPos": {
                    "x": _WIDTH * (number % 2),
                    "y": _HEIGHT * (number // 2),
                    "w": _WIDTH,
                    "h": _HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "options": {"tooltip": {"mode": "multi", "sort": "desc"}},
                "targets": [{"refId": "A", "datasource": source, "expr": expression, "legendFormat": legend}],
            }
            for number, (title, expression, unit, legend) in enumerate(PANELS[program])
        ],
    }


def text_of(program: str) -> str:
    """Return the text of a dashboard's file."""
    return json.dumps(dashboard(program), indent=2) + "\n"


def main() -> None:
    """Write all dashboards."""
    for program in PANELS:
        (TARGET / f"grafana-{program}.json").write_text(text_of(program), encoding="utf-8")


if __name__ == "__main__":
    main()
