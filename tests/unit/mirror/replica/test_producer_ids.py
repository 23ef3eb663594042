"""Raising of the producer ids of a target."""

from __future__ import annotations

from itertools import count

import pytest

from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.mirror.replica.producer_ids import (
    BLOCK_SIZE,
    MAX_BLOCKS,
    end_of_block,
    raise_producer_ids,
)


class Controller:
    """Assigns blocks of ten producer ids."""

    def __init__(self) -> None:
        self.next = 0
        self.blocks = 0

    def allocate(self) -> range:
        self.blocks += 1
        self.next += 10
        return range(self.next - 10, self.next)


class Broker:
    """Uses up its block before it takes another one."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._ids = iter(controller.allocate())

    def __call__(self) -> int:
        for producer_id in self._ids:
            return producer_id
        self._ids = iter(self._controller.allocate())
        return next(self._ids)


def test_every_broker_gives_ids_above_the_bound() -> None:
    controller = Controller()
    brokers = [Broker(controller) for _ in range(3)]

    lowest = raise_producer_ids(controller.allocate, brokers, 75)

    assert lowest == 80
    assert [broker() for broker in brokers] == [81, 91, 101]


def test_no_block_is_taken_if_all_brokers_are_above_the_bound() -> None:
    controller = Controller()
    controller.next = 500
    brokers = [Broker(controller) for _ in range(3)]

    assert raise_producer_ids(controller.allocate, brokers, 75) == 500
    assert controller.blocks == 3


def test_broker_above_the_bound_keeps_its_block() -> None:
    controller = Controller()
    low = Broker(controller)
    controller.next = 500
    high = Broker(controller)

    assert raise_producer_ids(controller.allocate, [low, high], 75) == 500
    assert (low(), high()) == (521, 501)


def test_raising_goes_on_in_the_next_call_when_it_takes_long() -> None:
    controller = Controller()
    broker = Broker(controller)
    clock = count()

    with pytest.raises(PromotionWaitsError, match="raised to 75: 20 so far"):
        raise_producer_ids(controller.allocate, [broker], 75, clock=lambda: next(clock) * 2.0)

    assert raise_producer_ids(controller.allocate, [broker], 75) == 80


def test_too_many_blocks_are_not_used_up() -> None:
    controller = Controller()

    with pytest.raises(PromotionError, match="at most 100,000,000 can be used up"):
        raise_producer_ids(controller.allocate, [Broker(controller)], MAX_BLOCKS * BLOCK_SIZE + 21)

    assert controller.blocks == 2


def test_end_of_block_is_the_next_multiple_of_1000() -> None:
    assert [end_of_block(each) for each in (-1, 0, 999, 1000)] == [0, 1000, 1000, 2000]
