"""The demo's last step: a gateway in front of a cluster without policies."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from examples.demo.display import Display
from examples.demo.gateway import RECORDS, show_gateway

if TYPE_CHECKING:
    from pathlib import Path

    import klamm


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("maven", ["missing", "offline"])
def test_gateway_step_denies_allows_and_raises_acks_of_an_unmodified_client(
    klamm_broker: klamm.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maven: str
) -> None:
    """Without Maven the demo says so, and uses the cluster that is there."""
    # given
    programs = tmp_path / "bin"
    programs.mkdir()
    if maven == "offline":
        (programs / "mvn").write_text("#!/bin/sh\necho '[ERROR] no route to host' >&2\nexit 1\n")
        (programs / "mvn").chmod(0o700)
    monkeypatch.setattr("examples.demo.kafka.require_java", lambda: tmp_path)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin" if maven == "offline" else str(programs))
    shown = io.StringIO()
    # when
    claims = show_gateway(klamm_broker.bootstrap_servers, tmp_path, Display(Console(file=shown, width=200)))
    # then
    assert [claim for claim in claims if not claim.holds] == []
    assert f"{RECORDS:,} records written and read" in shown.getvalue()
    reason = "there is no mvn on the PATH" if maven == "missing" else "Maven: [ERROR] no route to host"
    assert f"skipped, Apache Kafka cannot be had: {reason}" in shown.getvalue()
