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


@pytest.mark.long
def test_mirror_with_the_documented_rights_mirrors_over_tls_and_sasl(java: None, tmp_path: Path) -> None:
    # given
    certificates = Certificates.create(tmp_path)
    with scram_cluster(certificates) as cluster:
        grant(cluster)
        flow = scram_flow(cluster, certificates)
        flow.produce(5)
        keys = {
            **flow.file,
            "topics": flow.topic,
            "refresh.topics.interval.seconds": "1",
            "offset.storage.replication.factor": "1",
            "checkpoints.topic.replication.factor": "1",
            "emit.heartbeats.enabled": "false",
            "heartbeats.replication.enabled": "false",
            "sync.topic.acls.enabled": "false",
        }
        file = "".join(f"{key} = {value}\n" for key, value in keys.items())
        # when
        with MirrorProcess(file, tmp_path, as_users_run_it=True) as mirror:
            # then
            wait_until(lambda: flow.stored(flow.remote) == flow.stored(flow.topic), timeout_s=120, what="the batches")
            flow.produce(7)
            wait_until(lambda: flow.stored(flow.remote) == flow.stored(flow.topic), timeout_s=60, what="more batches")
            assert mirror.stop() == 0
