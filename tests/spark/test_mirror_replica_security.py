"""``klamm mirror`` as a broker of a cluster with TLS, SASL and ACLs, as users start it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.mirror import MirrorProcess
from tests.support.processes import wait_until
from tests.support.secure_flow import grant, scram_cluster, scram_flow
from tests.support.security import Certificates

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.secure_flow import SecureFlow


@pytest.mark.long
def test_mirrors_with_the_documented_rights_mirror_over_tls_and_sasl(java: None, tmp_path: Path) -> None:
    """Two flows to one target. No klamm has a listener without logins."""
    # given
    certificates = Certificates.create(tmp_path)
    with scram_cluster(certificates) as cluster:
        grant(cluster)
        flows = [scram_flow(cluster, certificates) for _ in range(2)]
        flows[0].produce(5)
        keys = {
            "topics": flows[0].topic,
            "refresh.topics.interval.seconds": "1",
            "offset.storage.replication.factor": "1",
            "checkpoints.topic.replication.factor": "1",
            "emit.heartbeats.enabled": "false",
            "heartbeats.replication.enabled": "false",
            "sync.topic.acls.enabled": "false",
        }
        for flow in flows:  # each has a node id and a listener of its own
            keys |= {f"{flow.alias}->B.{key}" if key.startswith("klamm.") else key: flow.file[key] for key in flow.file}
        keys["clusters"] = ", ".join([*(flow.alias for flow in flows), "B"])
        file = "".join(f"{key} = {value}\n" for key, value in keys.items())
        # when
        with MirrorProcess(file, tmp_path, as_users_run_it=True) as mirror:
            # then
            wait_for_batches(flows)
            flows[0].produce(7)
            wait_for_batches(flows)
            assert mirror.stop() == 0


def wait_for_batches(flows: list[SecureFlow]) -> None:
    for flow in flows:
        wait_until(
            lambda flow=flow: flow.stored(flow.remote) == flow.stored(flow.topic),  # type: ignore[misc]
            timeout_s=120,
            what=f"the batches of {flow.remote}",
        )
