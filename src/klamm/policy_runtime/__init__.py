"""Runtime of policies: each runs in its own thread, with a time limit, and is reloaded when its source changes."""

from klamm.policy_runtime.runtime import PolicyRuntime
from klamm.policy_runtime.service import Policies

__all__ = ["Policies", "PolicyRuntime"]
