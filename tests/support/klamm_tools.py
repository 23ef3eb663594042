"""Commands of klamm in this process, run beside Kafka's tools."""

from __future__ import annotations

import io
import sys
import tempfile
from typing import TYPE_CHECKING

from klamm import cli
from tests.support.kafka_tools import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def run_ours(cluster: str, words: Sequence[str], capture: pytest.CaptureFixture[str], stdin: bytes = b"") -> Outcome:
    """Run a command against a cluster and return its exit code and output."""
    capture.readouterr()
    before = sys.stdin
    with io.TextIOWrapper(tempfile.TemporaryFile()) as file:
        file.buffer.write(stdin)
        file.seek(0)
        sys.stdin = file
        try:
            code = cli.main([words[0], "--bootstrap-server", cluster, *words[1:]])
        except SystemExit as error:
            code = int(error.code or 0)
        finally:
            sys.stdin = before
    captured = capture.readouterr()
    return Outcome(code, captured.out, captured.err)
