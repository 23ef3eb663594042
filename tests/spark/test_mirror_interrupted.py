"""Ctrl-C at a terminal."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, create_topic, properties

if TYPE_CHECKING:
    from pathlib import Path


def test_ctrl_c_ends_a_mirror_in_order(tmp_path: Path) -> None:
    """Spark's own handler would cancel the tasks: what they have in flight would come twice."""
    # given
    with KlammBroker() as source, KlammBroker() as target:
        create_topic(source.bootstrap_servers, "t")
        file = properties(source.bootstrap_servers, target.bootstrap_servers, topics="t")
        with MirrorProcess(file, tmp_path) as mirror:
            mirror.wait_for("lag 0")
            # when
            mirror.process.send_signal(signal.SIGINT)
            code = mirror.wait()
            # then
            assert code == 0, mirror.text()[-4000:]
            assert mirror.text().rstrip().rpartition("\n")[2].startswith("A->B STOPPED")
            assert "did not end" not in mirror.text()
