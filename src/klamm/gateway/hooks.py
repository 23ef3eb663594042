"""Features that the gateway's settings enable: policies, client configs and the history of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.configs.definitions import UPSTREAM
from klamm.gateway.client_configs.hooks import ClientConfigFeature
from klamm.gateway.history.hooks import HistoryFeature
from klamm.gateway.policies import PolicyFeature

if TYPE_CHECKING:
    from klamm.gateway.relay.features import Feature
    from klamm.gateway.settings import GatewaySettings


async def load_features(settings: GatewaySettings) -> tuple[Feature, ...]:
    """Create the policies, the client configs and the history that the settings name.

    Raises:
        PolicyLoadError: A policy cannot be created.
        SettingsError: A setting of client configs or of the history has a wrong value.
    """
    configs = ClientConfigFeature.of(settings.upstream, settings.configs)
    history = HistoryFeature.of(settings.upstream, settings.configs)
    properties = {**settings.configs, UPSTREAM: ",".join(settings.upstream.bootstrap_servers)}
    features = (await PolicyFeature.load(properties), configs, history)
    return tuple(each for each in features if each is not None)


def reload(features: tuple[Feature, ...]) -> None:
    """Load the changed files of all features again, as on SIGHUP."""
    for feature in features:
        feature.reload()
