"""Hooks of the relay that the gateway's settings enable: policies, client configs and the history of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.configs.definitions import UPSTREAM
from klamm.gateway.client_configs.hooks import client_configs
from klamm.gateway.history.hooks import with_history
from klamm.gateway.policies import start_policies
from klamm.gateway.relay.interceptors import merged

if TYPE_CHECKING:
    from klamm.gateway.relay.interceptors import Interception
    from klamm.gateway.settings import GatewaySettings


async def start_hooks(settings: GatewaySettings) -> Interception:
    """Create the policies, the client configs and the history that the settings name.

    Raises:
        PolicyLoadError: A policy cannot be created.
        SettingsError: A setting of client configs or of the history has a wrong value.
    """
    configs = client_configs(settings.upstream, settings.configs)
    properties = {**settings.configs, UPSTREAM: ",".join(settings.upstream.bootstrap_servers)}
    hooks = merged(await start_policies(properties), configs)
    return with_history(hooks, settings.upstream, settings.configs)
