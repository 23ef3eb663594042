"""Policies of the gateway: requests are judged, denied parts are cut out, and the rest is forwarded.

The policies, their settings, modes, reload and time limits are those of the broker (``klamm.policy_runtime``). A module
per API cuts requests and merges responses with pure functions; its filter asks the policy and the upstream.
"""

from klamm.gateway.policies.judges import PolicyFeature

__all__ = ["PolicyFeature"]
