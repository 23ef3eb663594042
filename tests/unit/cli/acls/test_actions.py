"""ACL changes that the cluster rejects in part."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from unittest.mock import create_autospec

import pytest

from klamm.admin import Acl, AdminClient, KafkaApiError, PerKeyResult
from klamm.cli.acls.actions import add, remove
from klamm.cli.acls.options import parse
from klamm.kafka_client.errors import api_error
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection
    from unittest.mock import Mock

    from klamm.admin import AclFilter

FLAGS = "--bootstrap-server a:1 --topic one --topic two --allow-principal User:alice --operation Read"


@pytest.fixture
def admin() -> Mock:
    """An admin client of a cluster that rejects every change of topic two."""
    made: Mock = create_autospec(AdminClient, instance=True)

    def create_acls(acls: Collection[Acl]) -> PerKeyResult[Acl, None]:
        result: PerKeyResult[Acl, None] = PerKeyResult(acls)
        for acl in acls:
            result.settle(acl, _rejected() if acl.resource_name == "two" else None)
        return result

    def delete_acls(filters: Collection[AclFilter]) -> PerKeyResult[AclFilter, tuple[Acl, ...]]:
        result: PerKeyResult[AclFilter, tuple[Acl, ...]] = PerKeyResult(filters)
        for wanted in filters:
            result.settle(wanted, _rejected() if wanted.resource_name == "two" else ())
        return result

    made.create_acls.side_effect = create_acls
    made.describe_acls.return_value.result.return_value = []
    made.delete_acls.side_effect = delete_acls
    return made


def _rejected() -> KafkaApiError:
    return api_error(ErrorCode.SECURITY_DISABLED, "not this one")


def test_acls_added_before_failure_are_shown(admin: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KafkaApiError, match="not this one"):
        add(admin, parse([*FLAGS.split(), "--add"]))
    shown = capsys.readouterr().out
    assert "name=one" in shown
    assert "name=two" not in shown


def test_existing_acls_are_reported_and_kept(admin: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    options = parse([*FLAGS.replace("--topic two ", "").split(), "--operation", "Write", "--add"])
    (resource,) = options.rules
    existing, new = (rule.acl(resource) for rule in options.rules[resource])
    admin.describe_acls.return_value.result.return_value = [existing]

    assert add(admin, options) == 0
    admin.create_acls.assert_called_once_with([new])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Acl (pattern=ResourcePattern(resourceType=TOPIC, name=one,")
    assert lines[0].endswith(f"operation={existing.operation.name}, permissionType=ALLOW)) already exists.")
    assert [f"operation={new.operation.name}" in line for line in lines[1:]] == [False, True, False]

    admin.describe_acls.return_value.result.return_value = [existing, new]
    assert add(admin, options) == 0
    admin.create_acls.assert_called_once()


def test_json_lists_removed_acls(admin: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KafkaApiError, match="not this one"):
        remove(admin, parse([*FLAGS.split(), "--remove", "--force", "-o", "json"]))
    assert json.loads(capsys.readouterr().out) == []
