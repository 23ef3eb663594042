"""Futures per key, and of all of them."""

from __future__ import annotations

import pytest

from klamm.admin.results import PerKeyResult


def test_each_key_has_its_own_future() -> None:
    """K339-27: Admin API: incrementalAlterConfigs(map resource -> collection of AlterConfigOp, options) returns
    AlterConfigsResult with a future per resource (and all()).
    """
    result: PerKeyResult[str, int] = PerKeyResult(["a", "b"])
    result.succeed("a", 1)
    result.fail("b", ValueError("no"))
    assert list(result.values()) == ["a", "b"]
    assert result.values()["a"].result(0) == 1
    with pytest.raises(ValueError, match="no"):
        result.values()["b"].result(0)


def test_all_completes_after_every_key() -> None:
    """K339-27: Admin API: incrementalAlterConfigs(map resource -> collection of AlterConfigOp, options) returns
    AlterConfigsResult with a future per resource (and all()).
    """
    result: PerKeyResult[str, int] = PerKeyResult(["a", "b"])
    everything = result.all()
    result.succeed("b", 2)
    assert not everything.done()
    result.succeed("a", 1)
    assert everything.result(0) == {"a": 1, "b": 2}
    assert result.all().result(0) == {"a": 1, "b": 2}


def test_all_fails_with_the_first_error_in_the_order_of_the_keys() -> None:
    result: PerKeyResult[str, int] = PerKeyResult(["a", "b", "c"])
    everything = result.all()
    result.fail("c", ValueError("c"))
    result.fail("b", ValueError("b"))
    assert not everything.done()
    result.succeed("a", 1)
    with pytest.raises(ValueError, match="b"):
        everything.result(0)


def test_empty_request_completes_at_once() -> None:
    assert PerKeyResult[str, int]([]).all().result(0) == {}


def test_first_outcome_is_final() -> None:
    result: PerKeyResult[str, int] = PerKeyResult(["a"])
    result.succeed("a", 1)
    result.fail("a", ValueError())
    result.fail_open(ValueError())
    result.succeed("unknown", 2)
    assert result.values()["a"].result(0) == 1
