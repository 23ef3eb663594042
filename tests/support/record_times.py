"""Times of records that a broker keeps while a test runs.

A broker deletes a segment when its newest record is older than ``retention.ms``, a week by default, at a check half a
minute after its start and every five minutes. A test with older records fails whenever the check comes in between, so
it sets ``retention.ms=-1``, or takes its times from here.
"""

from __future__ import annotations

import time
from typing import Final

RECENT_MS: Final = int(time.time() * 1000) - 3_600_000
"""An hour before the tests, in milliseconds since 1970."""
