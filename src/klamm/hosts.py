"""Hosts as text: IP addresses of clients, which ACLs, quotas and limits compare, and hosts of URLs."""

from __future__ import annotations

import functools

_GROUPS = range(0, 16, 2)


@functools.lru_cache(maxsize=4096)
def host_forms(address: str) -> tuple[str, ...]:
    """Return the texts of an address that count as equal, that of Java's ``InetAddress.getHostAddress`` first.

    Java writes an IPv6 address in full, and one that contains an IPv4 address as IPv4. Kafka compares ACLs with that
    text alone; an operator may also use the short one here. Other text, such as a host name, is returned as it is.
    """
    if ":" not in address:
        return (address,)
    import ipaddress  # noqa: PLC0415  # most brokers never see an IPv6 address

    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return (address,)
    if parsed.ipv4_mapped is not None:
        return (str(parsed.ipv4_mapped),)
    scope = f"%{parsed.scope_id}" if parsed.scope_id else ""
    packed = parsed.packed
    full = ":".join(f"{int.from_bytes(packed[at : at + 2], 'big'):x}" for at in _GROUPS)
    return (full + scope, str(parsed))


def plain_host(address: str) -> str:
    """Return the address of a client as Kafka shows it."""
    return host_forms(address)[0]


def proxies_to(url: str) -> dict[str, str] | None:
    """Return the proxies for ``urllib.request.ProxyHandler`` on the way to a URL.

    None: those of the environment. Empty: none, because the URL is on this machine, where a proxy does not lead.
    """
    import ipaddress  # noqa: PLC0415  # see above
    from urllib.parse import urlsplit  # noqa: PLC0415  # most brokers never use a URL

    host = urlsplit(url).hostname or ""
    try:
        return {} if host == "localhost" or ipaddress.ip_address(host).is_loopback else None
    except ValueError:  # another name
        return None
