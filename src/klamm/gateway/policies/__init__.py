"""Policies of the gateway: a policy decides on the parts of a request, denied parts are cut out, the rest is forwarded.

The policies, their settings, modes, reload and time limits are those of the broker (``klamm.policy_runtime``). The
modules of ``gateway.apis`` cut requests and merge responses with pure functions; their filters ask the policy and the
upstream.
"""
