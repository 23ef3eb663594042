"""``klamm rollout`` in this process, and in a process of its own, which can be killed."""

from __future__ import annotations

import io
import json
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from klamm.admin import AdminClient
from klamm.cli import main
from klamm.clock import wall_clock_ms
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.rollout.record import RolloutRecord, Wave, begun, to_document
from klamm.rollout.store import RolloutStore
from tests.support.processes import start_process

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence


def command(servers: str, action: str, *words: str) -> list[str | Path]:
    """Return the command line of one action."""
    return [Path(sys.executable).with_name("klamm"), "rollout", action, "--bootstrap-server", servers, *words]


def launch(servers: str, action: str, *words: str, log: Path) -> subprocess.Popen[bytes]:
    """Start an action without waiting for it."""
    return start_process(command(servers, action, *words), log=log)


def run(servers: str, action: str, *words: str) -> tuple[int, str]:
    """Run an action in this process and return its exit code and all that it wrote."""
    written = io.StringIO()
    with redirect_stdout(written), redirect_stderr(written):
        code = main(["rollout", action, "--bootstrap-server", servers, *words])
    return code, written.getvalue()


@contextmanager
def _store(servers: str) -> Iterator[RolloutStore]:
    with AdminClient(servers) as admin:
        store = RolloutStore(ConnectionSettings.of(tuple(servers.split(",")), {}, "test"), admin)
        try:
            yield store
        finally:
            store.close()


def add_rollout(servers: str, *waves: Wave) -> str:
    """Write the first record of a roll-out that no process drives, and return its id."""
    record = RolloutRecord(id=uuid4().hex[:8], waves=waves, bake_ms=0, check_ms=1)
    with _store(servers) as store:
        return store.add(begun(record, at_ms=wall_clock_ms())).id


def rollouts(servers: str) -> list[dict[str, Any]]:
    """Return the records of all roll-outs, oldest first."""
    with _store(servers) as store:
        documents = [to_document(record) for record in store.records()]
    parsed: list[dict[str, Any]] = json.loads(json.dumps(documents))
    return parsed


def step_ms(record: dict[str, Any], event: str) -> int:
    """Return the time of the first step with an event, in milliseconds since the epoch."""
    return next(int(step["at_ms"]) for step in record["steps"] if step["event"] == event)


def states(record: dict[str, Any]) -> Sequence[str]:
    """Return the states that a roll-out went through."""
    return [step["state"] for step in record["steps"]]
