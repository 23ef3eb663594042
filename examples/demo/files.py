"""Last change of the demo: from a file, with its impact shown before it is made."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

from examples.demo.display import Claim

if TYPE_CHECKING:
    from pathlib import Path

    from examples.demo.display import Display

TOO_SHORT: Final = "retention.ms: 3650d"
"""Ten years: the flights are older."""
RIGHT: Final = "retention.ms: -1, max.message.bytes: 4MiB"
_TOO_BAD: Final = 4
"""Exit code of ``klamm`` for an impact that is worse than ``--max-impact``."""


def show_files(bootstrap_servers: str, topic: str, directory: Path, display: Display) -> tuple[Claim, ...]:
    """Plan a change that would delete records, apply a better one, and watch for drift.

    Args:
        bootstrap_servers: The cluster.
        topic: Topic with records of 2013.
        directory: Where the file is written.
        display: Output of the demo.
    """
    display.step(f"A file declares {topic} on B: its plan is applied only if nothing is lost")
    file = directory / "resources.yaml"

    def klamm(command: str, *flags: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "klamm.cli", command, str(file), "--bootstrap-server", bootstrap_servers, *flags]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    file.write_text(f"topics: {{{topic}: {{configs: {{{TOO_SHORT}}}}}}}\n", encoding="utf-8")
    rejected = klamm("apply", "--max-impact", "notice")
    display.table(rejected.stdout)
    file.write_text(f"topics: {{{topic}: {{configs: {{{RIGHT}}}}}}}\n", encoding="utf-8")
    applied = klamm("apply", "--max-impact", "notice")
    drift = klamm("drift", "--once")
    display.table(applied.stdout + drift.stdout)
    return (
        Claim(
            text="a plan says which records a change would delete, and it is not made",
            holds=rejected.returncode == _TOO_BAD and "Impact: loss" in rejected.stdout,
            evidence=next((line.strip() for line in rejected.stdout.splitlines() if "LOSS: " in line), rejected.stderr),
        ),
        Claim(
            text="what a file declares is applied, and then nothing differs",
            holds=(applied.returncode, drift.returncode) == (0, 0) and "1 changed" in applied.stdout,
            evidence=(drift.stdout or drift.stderr).strip(),
        ),
    )
