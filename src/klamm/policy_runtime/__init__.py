"""Runtime of policies.

``guard`` runs each policy and enforces its time limit: in a thread of its own or, if it only computes, on the event
loop.
``reloader`` reloads changed files.
"""

from klamm.policy_runtime.runtime import PolicyRuntime
from klamm.policy_runtime.service import Policies

__all__ = ["Policies", "PolicyRuntime"]
