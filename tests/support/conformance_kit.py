"""Import of the conformance kit, which is not a package, and access to its modules."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

KIT = Path(__file__).parents[1] / "conformance" / "kit"


@cache
def load_runner() -> Any:
    """Import the kit's ``run.py`` (with ``kit`` and ``wire`` in it) as it imports itself: its directory on the path.

    ``CASES`` holds the cases.
    """
    writes_bytecode = sys.dont_write_bytecode
    spec = importlib.util.spec_from_file_location("klamm_conformance_runner", KIT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    runner: Any = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(runner)
        runner.CASES = runner.kit.load(str(KIT / "cases" / "public"), "public")
    finally:
        sys.dont_write_bytecode = writes_bytecode
        sys.path.remove(str(KIT))
    return runner
