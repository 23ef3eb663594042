"""The demo's last step: a gateway in front of a cluster without policies."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from klamm.demo.display import Display
from klamm.demo.gateway import RECORDS, show_gateway

if TYPE_CHECKING:
    from pathlib import Path

    import klamm


@pytest.mark.process
def test_an_unmodified_client_is_refused_accepted_and_gets_its_acks_raised(
    klamm_broker: klamm.Broker, tmp_path: Path
) -> None:
    # given
    shown = io.StringIO()
    # when
    claims = show_gateway(klamm_broker.bootstrap_servers, tmp_path, Display(Console(file=shown, width=200)))
    # then
    assert [claim for claim in claims if not claim.holds] == []
    assert f"{RECORDS:,} records written and read" in shown.getvalue()
