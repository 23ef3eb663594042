"""Features that the gateway's settings enable: policies, client configs and the history of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.configs.definitions import UPSTREAM
from klamm.gateway.apis.table import CLIENT_CONFIG_FILTERS, POLICIES, RECORDED, UNFILTERED
from klamm.gateway.client_configs.feature import ClientConfigFeature
from klamm.gateway.history.feature import HistoryFeature
from klamm.gateway.policies.feature import PolicyFeature

if TYPE_CHECKING:
    from klamm.gateway.relay.features import Feature
    from klamm.gateway.settings import GatewaySettings


async def load_features(settings: GatewaySettings) -> tuple[Feature, ...]:
    """Create the policies, the client configs and the history that the settings name.

    Raises:
        PolicyLoadError: A policy cannot be created.
    """
    properties = {**settings.configs, UPSTREAM: ",".join(settings.upstream.bootstrap_servers)}
    features: list[Feature] = [await PolicyFeature.load(properties, POLICIES, UNFILTERED)]
    if settings.client_configs is not None:
        features.append(ClientConfigFeature(settings.upstream, settings.client_configs, CLIENT_CONFIG_FILTERS))
    if settings.records_history:
        features.append(HistoryFeature(settings.upstream, RECORDED))
    return tuple(features)


def reload(features: tuple[Feature, ...]) -> None:
    """Load the changed files of all features again, as on SIGHUP."""
    for feature in features:
        feature.reload()
