"""Sessions that a worker process keeps between two leases."""

from __future__ import annotations

from unittest.mock import Mock, create_autospec

from klamm.mirror.spark.worker import KeptSessions, LeaseSession
from tests.support.processes import wait_until


def session() -> Mock:
    made: Mock = create_autospec(LeaseSession, instance=True)
    return made


def test_session_that_no_lease_resumes_is_closed() -> None:
    kept, left = KeptSessions(kept_s=0.01), session()
    kept.keep(0, left)
    wait_until(lambda: left.close.called, timeout_s=30, what="the end of the session")
    assert kept.take_all() == {}


def test_session_of_the_next_lease_is_not_closed() -> None:
    kept, first, second = KeptSessions(kept_s=2.0), session(), session()
    kept.keep(0, first)
    assert kept.take_all() == {0: first}
    kept.keep(0, second)
    wait_until(lambda: second.close.called, timeout_s=30, what="the end of the later session")
    first.close.assert_not_called()
