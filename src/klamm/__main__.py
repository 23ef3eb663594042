"""Entry point of ``python -m klamm``, which is the same as ``klamm``."""

from __future__ import annotations

import sys

from klamm.script import main

sys.exit(main())
