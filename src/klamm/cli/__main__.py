"""``python -m klamm.cli`` is ``klamm``."""

from __future__ import annotations

import sys

from klamm.cli import main

sys.exit(main())
