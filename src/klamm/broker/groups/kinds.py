"""The two kinds of groups that a coordinator has: classic groups and consumer groups (KIP-848)."""

from __future__ import annotations

from typing import TypeAlias

from klamm.broker.groups.classic import ClassicGroup
from klamm.broker.groups.consumer.group import ConsumerGroup

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup
