"""IP addresses of clients as text, which ACLs, quotas and limits compare."""

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
