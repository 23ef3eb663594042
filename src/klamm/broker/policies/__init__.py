"""Policies while they serve: on threads of their own, with a time limit, replaced when their source changes."""

from klamm.broker.policies.reloader import PolicyReloader
from klamm.broker.policies.service import Policies
from klamm.broker.policies.settings import PolicySettings

__all__ = ["Policies", "PolicyReloader", "PolicySettings"]
