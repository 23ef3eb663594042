"""Actions of ``klamm acls`` on a cluster, one function each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.cli.acls.rules import check_principals, of_acl
from klamm.cli.output import print_error, print_result
from klamm.display import escaped
from klamm.security.acls import ANY_ACL

if TYPE_CHECKING:
    import argparse
    from collections.abc import Container, Iterable, Sequence

    from klamm.admin import Acl, AdminClient, PerKeyResult
    from klamm.cli.acls.rules import AccessRule, ResourceFilter, Rules

Key = TypeVar("Key")
Value = TypeVar("Value")


def add(admin: AdminClient, options: argparse.Namespace) -> int:
    """Add ACLs. Those that exist already are reported and left alone.

    Raises:
        KafkaApiError, OSError: An ACL was not added. Those that were added are shown first.
    """
    _check(options)
    present = {acl for resource in options.rules for acl in admin.describe_acls(resource.everything()).result()}
    wanted = [rule.acl(resource) for resource, rules in options.rules.items() for rule in rules]
    acls = [acl for acl in wanted if acl not in present]
    added, failure = _settled(admin.create_acls(acls)) if acls else ({}, None)
    if failure is not None and not added:
        raise failure
    print_result(
        options.output,
        [_document(acl) for acl in added],
        lambda: list(_added(options.rules, added, present)),
        has_tabs=True,
    )
    if failure is not None:
        raise failure
    return 0


def remove(admin: AdminClient, options: argparse.Namespace) -> int:
    """Remove ACLs. Return 1 if a question was not answered with yes.

    Raises:
        KafkaApiError, OSError: An ACL was not removed. Those that were removed are shown first, if not in Kafka's text.
    """
    _check(options)
    filters = []
    rejected = False
    for resource, rules in options.rules.items():
        if not options.force and not _is_confirmed(resource, rules, options):
            rejected = True
            continue
        filters += [rule.filter(resource) for rule in rules] or [resource.everything()]
    removed, failure = _settled(admin.delete_acls(filters))
    if failure is not None and not removed:
        raise failure
    print_result(options.output, [_document(acl) for acls in removed.values() for acl in acls], list)
    if failure is not None:
        raise failure
    return 1 if rejected else 0


def _settled(result: PerKeyResult[Key, Value]) -> tuple[dict[Key, Value], BaseException | None]:
    """Wait for a call. Return what succeeded, and the first error."""
    done: dict[Key, Value] = {}
    failure: BaseException | None = None
    for key, outcome in result.values().items():
        if (error := outcome.exception()) is None:
            done[key] = outcome.result()
        else:
            failure = failure or error
    return done, failure


def list_acls(admin: AdminClient, options: argparse.Namespace) -> int:
    """Print ACLs."""
    principals = [principal.strip() for principal in options.principal or () if principal]
    check_principals(principals)
    filters = [resource.everything() for resource in options.rules] or [ANY_ACL]
    acls = sorted({acl for wanted in filters for acl in admin.describe_acls(wanted).result()})
    if principals:
        tables = {principal: [acl for acl in acls if acl.principal == principal] for principal in principals}
        documents = [_document(acl) for acls in tables.values() for acl in acls]
        lines = [
            line
            for principal, acls in tables.items()
            for line in (f"ACLs for principal `{escaped(principal)}`", *_listed(acls))
        ]
    else:
        documents, lines = [_document(acl) for acl in acls], list(_listed(acls))
    print_result(options.output, documents, lambda: lines, has_tabs=True)
    return 0


def _check(options: argparse.Namespace) -> None:
    check_principals([*(options.allow_principal or ()), *(options.deny_principal or ())])


def _is_confirmed(resource: ResourceFilter, rules: Sequence[AccessRule], options: argparse.Namespace) -> bool:
    """Ask on stdout, or on stderr if stdout is for a document, and read the answer from stdin."""
    where = f"resource filter `{escaped(str(resource))}`? (y/n)"
    lines = [f"Are you sure you want to delete all ACLs for {where}"]
    if rules:
        lines = ["Are you sure you want to remove ACLs: ", *_indented(rules), f" from {where}"]
    stream = sys.stdout if options.output == "human" else sys.stderr
    stream.write("".join(f"{line}\n" for line in lines))
    stream.flush()
    is_confirmed = sys.stdin.readline().strip().lower() == "y"
    if not is_confirmed:
        print_error(f"Not confirmed: no ACL is removed for resource filter `{escaped(str(resource))}`.")
    return is_confirmed


def _added(rules: Rules, added: Container[Acl], present: Container[Acl]) -> Iterable[str]:
    for resource, resource_rules in rules.items():
        for rule in resource_rules:
            if rule.acl(resource) in present:
                yield f"Acl (pattern={escaped(str(resource))}, entry={escaped(str(rule))}) already exists."
        if done := [rule for rule in resource_rules if rule.acl(resource) in added]:
            yield f"Adding ACLs for resource `{escaped(str(resource))}`: "
            yield from _indented(done)
            yield ""


def _listed(acls: Iterable[Acl]) -> Iterable[str]:
    by_resource: dict[ResourceFilter, list[AccessRule]] = {}
    for resource, rule in map(of_acl, acls):
        by_resource.setdefault(resource, []).append(rule)
    for resource, rules in by_resource.items():
        yield f"Current ACLs for resource `{escaped(str(resource))}`:"
        yield from (f"\t{escaped(str(rule))}" for rule in rules)
        yield ""


def _indented(rules: Sequence[AccessRule]) -> list[str]:
    """Return rules as Kafka's tool prints them when it changes something."""
    return [f"{'' if number else ' '}\t{escaped(str(rule))}" for number, rule in enumerate(rules)]


def _document(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": acl.resource_type.name,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission_type": acl.permission.name,
    }
