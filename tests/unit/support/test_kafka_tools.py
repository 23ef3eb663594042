"""Java process that runs Kafka's tools."""

from __future__ import annotations

import subprocess
from unittest.mock import create_autospec

import pytest

from tests.support.kafka_tools import KafkasTools


def test_process_that_does_not_end_is_killed() -> None:
    tools = KafkasTools()
    tools._java = create_autospec(subprocess.Popen, instance=True)
    tools._java.communicate.side_effect = subprocess.TimeoutExpired("java", 60)  # type: ignore[attr-defined]
    # when
    with pytest.raises(subprocess.TimeoutExpired):
        tools.__exit__(None, None, None)
    # then
    tools._java.kill.assert_called_once()  # type: ignore[attr-defined]
    tools._java.wait.assert_called_once()  # type: ignore[attr-defined]
