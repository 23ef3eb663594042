"""scripts/beside_load.py: other processes are busy for as long as a command runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scripts import load_script

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_one_process_per_cpu_is_busy_until_the_command_ends(tmp_path: Path) -> None:
    # given
    script: Any = load_script("beside_load")
    script.BUSY = f"import os, pathlib; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()\n" + script.BUSY
    wait_for_all = (
        "import os, time\n"
        "deadline = time.monotonic() + 60\n"
        f"while len(os.listdir({str(tmp_path)!r})) < {os.cpu_count()}:\n"
        "    if time.monotonic() > deadline: raise SystemExit(1)\n"
        "raise SystemExit(7)"
    )

    # when
    code = script.run((sys.executable, "-c", wait_for_all))

    # then
    assert code == 7
    assert len(list(tmp_path.iterdir())) == os.cpu_count()
    for file in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.name), 0)
