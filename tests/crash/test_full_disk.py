"""The metadata store on a full disk: acknowledged changes are kept, and writing resumes when there is room."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WRITE_UNTIL_REJECTED = """
import asyncio, resource, signal, sys
from pathlib import Path
from klamm.protocol.errors import StorageError
from klamm.storage.metadata.changes import PutSetting
from klamm.storage.metadata.store import MetadataStore

async def main(path):
    store = MetadataStore.open(path)
    images = []
    store.on_failure = lambda _: images.append(len(store.load_settings()))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    acknowledged = 0
    try:
        while True:
            await store.submit((PutSetting(name=str(acknowledged), value="x" * 3000),))
            acknowledged += 1
    except StorageError:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.submit((PutSetting(name="after", value="there is room again"),))
    await store.close()
    again = MetadataStore.open(path)
    names = {setting.name for setting in again.load_settings()}
    await again.close()
    assert names == {"after", *map(str, range(acknowledged))}, names
    assert images == [acknowledged], images
    print(acknowledged)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes beyond the limit fail instead
asyncio.run(main(Path(sys.argv[1])))
"""


def test_acknowledged_changes_survive_full_disk_and_store_resumes(tmp_path: Path) -> None:
    """In a process of its own: the limit on the size of files is the process's."""
    result = subprocess.run(
        [sys.executable, "-c", WRITE_UNTIL_REJECTED, str(tmp_path / "metadata.sqlite")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 0
