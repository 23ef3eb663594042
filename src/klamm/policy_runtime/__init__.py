"""Loaded policies at work in a server: calls with a time limit, decisions, and reload.

=============  =======================================================================================================
``runtime``    Owner of the policies and of the properties that they were created from. The server creates this one
``service``    ``Policies``, which handlers ask: the policies of every kind, and responses made from their decisions
``decision``   Loop that repeats a decision until the policy has checked exactly what is applied
``guard``      One policy and its time limit: in a thread of its own or, if it only computes, on the event loop
``worker``     The thread of one policy
``reloader``   Replacement of policies whose files change
``details``    What a policy sees of a change
``overrides``  Requests changed as a policy demands (action OVERRIDE)
``denials``   Log lines of denials, bounded in number
=============  =======================================================================================================
"""

from klamm.policy_runtime.runtime import PolicyRuntime
from klamm.policy_runtime.service import Policies

__all__ = ["Policies", "PolicyRuntime"]
