from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from klamm.storage.metadata.changes import DropAcl, DropScramCredential, PutAcl, PutScramCredential
from klamm.storage.metadata.store import MetadataStore

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.storage.metadata.changes import Change

ACL = PutAcl(
    resource_type=2,
    resource_name="orders",
    pattern_type=3,
    principal="User:alice",
    host="*",
    operation=3,
    permission=3,
)
CREDENTIAL = PutScramCredential(
    user="alice", mechanism=1, salt=b"\x00salt", stored_key=b"stored", server_key=b"server", iterations=4096
)


def stored_after(path: Path, *commits: list[Change]) -> tuple[list[PutAcl], list[PutScramCredential]]:
    async def run() -> tuple[list[PutAcl], list[PutScramCredential]]:
        store = MetadataStore.open(path / "metadata.sqlite")
        for changes in commits:
            await store.submit(changes)
        await store.close()
        again = MetadataStore.open(path / "metadata.sqlite")
        loaded = again.load_acls(), again.load_scram_credentials()
        await again.close()
        return loaded

    return asyncio.run(run())


def test_acls_and_credentials_are_loaded_as_stored(tmp_path: Path) -> None:
    assert stored_after(tmp_path, [ACL, CREDENTIAL]) == ([ACL], [CREDENTIAL])


def test_repeated_acl_is_stored_once(tmp_path: Path) -> None:
    other = replace(ACL, host="10.0.0.1")
    assert stored_after(tmp_path, [ACL, ACL], [ACL, other])[0] == [ACL, other]


def test_dropped_acl_leaves_the_others(tmp_path: Path) -> None:
    other = replace(ACL, operation=4)
    assert stored_after(tmp_path, [ACL, other], [DropAcl(acl=ACL)])[0] == [other]


def test_credential_is_replaced_and_dropped_by_mechanism(tmp_path: Path) -> None:
    stronger = replace(CREDENTIAL, mechanism=2)
    newer = replace(CREDENTIAL, iterations=8192)
    stored = stored_after(tmp_path, [CREDENTIAL, stronger], [newer, DropScramCredential(user="alice", mechanism=2)])
    assert stored[1] == [newer]


def test_credential_repr_hides_secrets() -> None:
    assert "salt" not in repr(CREDENTIAL)
    assert "stored" not in repr(CREDENTIAL)
    assert "server" not in repr(CREDENTIAL)
