"""Entry point of ``python -m klamm.cli``, which is the same as ``klamm``."""

from __future__ import annotations

import sys

from klamm.cli import main

sys.exit(main())
