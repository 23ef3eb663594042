"""TLS settings that change while the broker runs: ``ssl.*`` configs of a broker resource (KIP-226).

A change is tested before it is accepted. It is rejected when its stores cannot be opened, or when its certificate has
another distinguished name or fewer alternative names, unless ``ssl.allow.dn.changes`` or ``ssl.allow.san.changes``
allows that. Open connections keep their TLS context; new connections use the new one. Setting a store to its current
value reloads its file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from klamm.configs.brokers import as_dynamic_error
from klamm.configs.definitions import base_name
from klamm.properties import SettingsError
from klamm.protocol.errors import InvalidRequestError
from klamm.protocol.types import ResourceType
from klamm.security.certificates import CertificateError, alternative_names_of, subject_of
from klamm.server.listeners import setting_of
from klamm.server.security.tls import ReplaceableContext, ServerTls, server_tls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from klamm.broker.configs.service import ConfigsChanged
    from klamm.configs.operations import ConfigDecision
    from klamm.history.change import Author
    from klamm.policy.answers import Override
    from klamm.server.listeners import Listener

logger: Final = logging.getLogger(__name__)


class TlsRenewal:
    """Keeper of the TLS contexts of all listeners and brokers; also a guard on config changes.

    A broker starts with the properties and its stored dynamic configs. If these do not work together, it starts with
    the properties alone. Used on the event loop only.

    Args:
        listeners: Listeners with TLS.
        node_ids: Broker ids.
        static: Settings of the properties file.
        dynamic: Stored dynamic configs, by name of the broker resource.

    Raises:
        SettingsError: The TLS settings of a listener do not work, neither with the dynamic configs nor without them.
    """

    resource_types: Final = frozenset({ResourceType.BROKER})

    def __init__(
        self,
        listeners: Sequence[Listener],
        *,
        node_ids: Sequence[int],
        static: Mapping[str, str],
        dynamic: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._static = static
        self._listeners = {listener.name: listener for listener in listeners}
        self._tried: dict[tuple[int, str], tuple[Mapping[str, str], ServerTls]] = {}
        self._in_force: dict[tuple[int, str], ServerTls] = {}
        for listener in listeners:
            by_properties = cache(partial(server_tls, listener, static))
            for node_id in node_ids:
                own = dynamic.get(str(node_id), {})
                changed = self._changed(node_id, listener.name, own) if listener.name in self._concerned(own) else None
                self._in_force[node_id, listener.name] = changed or by_properties()
        self._sockets = {key: ReplaceableContext.around(tls.context) for key, tls in self._in_force.items()}

    def current(self, node_id: int, listener: str) -> ServerTls | None:
        """Return the current TLS of a broker's listener; None if the listener has no TLS."""
        return self._in_force.get((node_id, listener))

    def context(self, node_id: int, listener: str) -> ReplaceableContext:
        """Return the replaceable context for a broker's socket of a listener."""
        return self._sockets[node_id, listener]

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return a null context: TLS settings may be checked while other changes are decided."""
        return contextlib.nullcontext()

    async def check(
        self, decision: ConfigDecision, author: Author, overridden: Override | None, *, validate_only: bool
    ) -> None:
        """Reject TLS settings that do not work.

        Raises:
            KafkaApiError: The TLS settings do not work.
        """
        if not decision.resource_name:
            return
        node_id, configs = int(decision.resource_name), {**self._static, **decision.result}
        for name in self._concerned(change.name for change in decision.changes):
            key = node_id, name
            if key not in self._in_force:
                continue
            try:
                made = await asyncio.to_thread(server_tls, self._listeners[name], configs)
                self._check_names(self._listeners[name], configs, self._in_force[key].certificate, made.certificate)
            except (SettingsError, CertificateError) as error:
                is_setting = isinstance(error, SettingsError)
                reason = error if is_setting else "The names in the old or the new certificate cannot be read"
                message = f"Validation of dynamic config update of SSLFactory failed: {reason}"
                raise InvalidRequestError(as_dynamic_error(message)) from None
            if not validate_only:
                self._tried[key] = configs, made

    def follow(self, change: ConfigsChanged, dynamic: Mapping[str, str]) -> None:
        """Apply changed configs of a broker. Settings that do not work are logged and the old context stays in use."""
        if not change.resource_name:
            return
        node_id = int(change.resource_name)
        for name in self._concerned(change.names):
            key = node_id, name
            if key in self._in_force and (changed := self._changed(node_id, name, dynamic)) is not None:
                self._in_force[key] = changed
                self._sockets[key].current = changed.context

    def _changed(self, node_id: int, name: str, dynamic: Mapping[str, str]) -> ServerTls | None:
        """Return the TLS of a listener with dynamic configs; None if they do not work, which is logged."""
        configs = {**self._static, **dynamic}
        tried, made = self._tried.pop((node_id, name), (None, None))
        try:
            if made is None or tried != configs:
                made = server_tls(self._listeners[name], configs)
        except SettingsError as error:
            logger.error("Listener %s of broker %d keeps its TLS settings: %s", name, node_id, error)  # noqa: TRY400  # the message says all
            return None
        logger.info("Listener %s of broker %d: new connections use the changed TLS settings", name, node_id)
        return made

    def _concerned(self, names: Iterable[str]) -> list[str]:
        """Return the listeners that the named configs affect; a name without a listener prefix affects all."""
        listeners: set[str] = set()
        for name in names:
            if base_name(name).startswith("ssl."):
                own = [each for each in self._listeners if name.startswith(f"listener.name.{each.lower()}.")]
                listeners.update(own if name.startswith("listener.name.") else self._listeners)
        return sorted(listeners)

    def _check_names(self, listener: Listener, configs: Mapping[str, str], old: bytes, new: bytes) -> None:
        """Reject a certificate with other names than the current one.

        Raises:
            SettingsError: A name differs and may not.
            CertificateError: The names of a certificate cannot be read.
        """

        def is_allowed(what: str) -> bool:
            return (setting_of(configs, listener.name, what) or "").strip().lower() == "true"

        if not is_allowed("ssl.allow.dn.changes") and subject_of(old).lower() != subject_of(new).lower():
            raise SettingsError(
                f"Keystore DistinguishedName does not match: existing={subject_of(old)}, new={subject_of(new)}"
                " (ssl.allow.dn.changes=true in the broker's properties allows it)"
            )
        if not is_allowed("ssl.allow.san.changes") and not alternative_names_of(new) >= alternative_names_of(old):
            raise SettingsError(
                "Keystore SubjectAltNames do not match: the new certificate lacks names of the old one"
                " (ssl.allow.san.changes=true in the broker's properties allows it)"
            )
