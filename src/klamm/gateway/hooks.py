"""Hooks of the relay that the gateway's settings enable: policies and client configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.gateway.client_configs.hooks import client_configs
from klamm.gateway.interceptors import merged
from klamm.gateway.policies import start_policies

if TYPE_CHECKING:
    from klamm.gateway.interceptors import Interception
    from klamm.gateway.settings import GatewaySettings


async def start_hooks(settings: GatewaySettings) -> Interception:
    """Create the policies and the client configs that the settings name.

    Raises:
        PolicyLoadError: A policy cannot be created.
        SettingsError: A setting of client configs has a wrong value.
    """
    configs = client_configs(settings.upstream, settings.configs)
    return merged(await start_policies(settings.configs), configs)
