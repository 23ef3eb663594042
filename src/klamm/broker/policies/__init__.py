"""Runtime of policies: each runs in its own thread, with a time limit, and is reloaded when its source changes."""

from klamm.broker.policies.reloader import PolicyReloader
from klamm.broker.policies.service import Policies
from klamm.broker.policies.settings import PolicySettings

__all__ = ["Policies", "PolicyReloader", "PolicySettings"]
