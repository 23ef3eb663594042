"""A disk that loses what was not synced: what a power cut would leave of a directory tree, at any moment.

``PowerCutDisk`` works on a real directory, in the process that writes to it. While ``recording`` it replaces the
functions of ``os`` that change files (``pathlib``, ``shutil`` and everything else in Python goes through them), calls
the real one, and then compares the tree with what it was before. So it knows of every file and every directory which
changes came since the last fsync. fsync itself never reaches the real disk, which makes simulated runs fast.

Each such call is a *moment*; ``on_moment`` is called at each with the name of the function. ``image()`` returns what a
power cut at this moment could leave: unsynced changes are lost, kept, kept in order up to some point, or kept at
random. Of file contents that goes by sectors of 512 bytes, of directory entries by name; a rename happens or does not.
``write_image`` turns an image into a directory on which the code under test is started again.

``recorded_disk`` is stricter about time and laxer about names: it also follows SQLite, and lets a prefix of the changes
of names survive, as on a journaling file system. Here any of them may survive without the others, and every moment is
looked at while it happens, so that a test can compare it with what the code under test had in memory.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

SECTOR: Final = 512
FATES: Final = ("none", "all", "prefix", "random")
_RECENT_NS: Final = 50_000_000
"""A file that was changed this lately is read again: another change may have left the same time behind."""
_CHANGING: Final = (
    "pwritev",
    "write",
    "ftruncate",
    "truncate",
    "rename",
    "replace",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "link",
)
_RENAMES: Final = frozenset({"rename", "replace"})

Image = dict[str, "bytes | None"]
"""Path below the root -> contents; None is a directory."""


@dataclass(slots=True)
class _Node:
    """A file or directory, whatever its names are."""

    is_directory: bool
    content: bytes = b""
    """Of a file: what a reader sees."""
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, data) or (size, None) for a truncation, since the last fsync."""
    modified_ns: int = -1


@dataclass(slots=True)
class _EntryChange:
    """What one call did to names: they appear or vanish together."""

    added: dict[tuple[int, str], int]
    """(number of the directory, name) -> number of the node."""
    removed: set[tuple[int, str]]


_ROOT: Final = 0


class PowerCutDisk:
    """A directory tree, and what of it survives a power cut. Used from several threads.

    Args:
        root: An existing directory; what it holds now counts as durable.
        chance: Decides about what survives.
    """

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.on_moment: Callable[[str], None] = lambda _: None
        self.loses_synced_data = False
        """A disk that lies: fsync makes nothing durable. A checker must notice."""
        self._root = root
        self._chance = chance
        self._lock = threading.RLock()
        self._nodes: dict[int, _Node] = {_ROOT: _Node(is_directory=True)}
        self._numbers: dict[int, int] = {root.stat().st_ino: _ROOT}
        self._next = _ROOT + 1
        self._entries: dict[tuple[int, str], int] = {}
        self._durable_entries: dict[tuple[int, str], int] = {}
        self._pending_entries: list[_EntryChange] = []
        self._is_busy = False
        self._scan(is_one_change=True)
        for node in self._nodes.values():
            node.durable, node.pending = node.content, []
        self._durable_entries, self._pending_entries = dict(self._entries), []

    # -- following what is written

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Follow every change that this process makes; fsync does nothing to the real disk."""
        real = {name: getattr(os, name) for name in (*_CHANGING, "open", "fsync")}
        try:
            for name in _CHANGING:
                setattr(os, name, self._following(name, real[name]))
            os.open = self._following_open(real["open"])
            os.fsync = self._fsync  # type: ignore[assignment]  # takes descriptors only
            yield
        finally:
            for name, function in real.items():
                setattr(os, name, function)

    def _following(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def follow(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                try:
                    return real(*arguments, **options)
                finally:
                    self._moment(name)

        return follow

    def _following_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def follow(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if not flags & os.O_CREAT:
                return real(path, flags, *arguments, **options)
            with self._lock:
                try:
                    return real(path, flags, *arguments, **options)
                finally:
                    self._moment("open")

        return follow

    def _fsync(self, descriptor: int) -> None:
        with self._lock:
            self._moment("before fsync")
            number = self._numbers.get(os.fstat(descriptor).st_ino)
            if number is not None:
                self._sync(number)
            self._moment("after fsync")

    def _moment(self, name: str) -> None:
        if self._is_busy:  # what ``on_moment`` does is not part of the run
            return
        self._is_busy = True
        try:
            if self._scan(is_one_change=name in _RENAMES) or "fsync" in name:
                self.on_moment(name)
        finally:
            self._is_busy = False

    def _sync(self, number: int) -> None:
        if self.loses_synced_data:
            return
        node = self._nodes[number]
        if not node.is_directory:
            node.durable, node.pending = node.content, []
            return
        waiting = []
        for change in self._pending_entries:
            if any(directory == number for directory, _ in (*change.added, *change.removed)):
                _apply(self._durable_entries, change)
            else:
                waiting.append(change)
        self._pending_entries = waiting

    def _scan(self, *, is_one_change: bool) -> bool:
        """Compare the real tree with what is known of it; return whether it has changed."""
        found: dict[tuple[int, str], int] = {}
        alive = {_ROOT}
        has_changed = self._scan_directory(_ROOT, str(self._root), found, alive)
        added = {key: number for key, number in found.items() if self._entries.get(key) != number}
        removed = {key for key in self._entries if key not in found}
        if is_one_change and (added or removed):
            self._pending_entries.append(_EntryChange(added, removed))
        elif added or removed:
            self._pending_entries += [_EntryChange({}, {key}) for key in sorted(removed)]
            self._pending_entries += [_EntryChange({key: number}, set()) for key, number in added.items()]
        self._entries = found
        self._numbers = {inode: number for inode, number in self._numbers.items() if number in alive}
        return has_changed or bool(added or removed)

    def _scan_directory(self, number: int, path: str, found: dict[tuple[int, str], int], alive: set[int]) -> bool:
        has_changed = False
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                status = entry.stat(follow_symlinks=False)
                child = self._numbers.get(status.st_ino)
                if child is None:
                    child = self._numbers[status.st_ino] = self._next
                    self._next += 1
                    self._nodes[child] = _Node(is_directory=entry.is_dir())
                found[number, entry.name] = child
                alive.add(child)
                if entry.is_dir():
                    has_changed |= self._scan_directory(child, entry.path, found, alive)
                else:
                    has_changed |= self._look_into(self._nodes[child], entry.path, status)
        return has_changed

    def _look_into(self, node: _Node, path: str, status: os.stat_result) -> bool:
        is_old = status.st_mtime_ns < time.time_ns() - _RECENT_NS
        if is_old and status.st_mtime_ns == node.modified_ns and status.st_size == len(node.content):
            return False
        with open(path, "rb") as file:
            content = file.read()
        node.modified_ns = status.st_mtime_ns
        if content == node.content:
            return False
        if len(content) < len(node.content):
            node.pending.append((len(content), None))
        kept = min(len(content), len(node.content))
        start = next((at for at in range(kept) if content[at] != node.content[at]), kept)
        if content[start:]:
            node.pending.append((start, content[start:]))
        node.content = content
        return True

    # -- after a power cut

    def image(self, fate: str | None = None) -> Image:
        """Return what a power cut at this moment leaves.

        Args:
            fate: One of ``FATES`` for all unsynced changes; None chooses one for the names and one for each file.
        """
        with self._lock:
            entries = dict(self._durable_entries)
            for change in self._survivors(self._pending_entries, fate or self._chance.choice(FATES)):
                _apply(entries, change)
            children: dict[int, list[tuple[str, int]]] = {}
            for (directory, name), number in entries.items():
                children.setdefault(directory, []).append((name, number))
            image: Image = {}
            self._add_to(image, _ROOT, "", children, fate)
            return image

    def _add_to(
        self, image: Image, number: int, path: str, children: Mapping[int, list[tuple[str, int]]], fate: str | None
    ) -> None:
        for name, child in children.get(number, ()):
            node = self._nodes[child]
            below = f"{path}{name}"
            image[below] = None if node.is_directory else self._content(node, fate or self._chance.choice(FATES))
            if node.is_directory:
                self._add_to(image, child, f"{below}/", children, fate)

    def _survivors(self, changes: Sequence[_EntryChange], fate: str) -> Iterable[_EntryChange]:
        cut = self._chance.randrange(len(changes) + 1)
        for index, change in enumerate(changes):
            if (
                fate == "all"
                or (fate == "prefix" and index < cut)
                or (fate == "random" and self._chance.random() < 0.5)
            ):
                yield change

    def _content(self, node: _Node, fate: str) -> bytes:
        if not node.pending or fate == "none":
            return node.durable
        if fate == "all":
            return node.content
        result = bytearray(node.durable)
        sectors = [
            (start + at, data[at : at + SECTOR]) if data is not None else (start, None)
            for start, data in node.pending
            for at in range(0, max(len(data or b""), 1), SECTOR)
        ]
        cut = self._chance.randrange(len(sectors) + 1)
        for index, (start, data) in enumerate(sectors):
            if (fate == "prefix" and index >= cut) or (fate == "random" and self._chance.random() < 0.5):
                continue
            if data is None:
                del result[start:]
            else:
                result.extend(bytes(max(0, start + len(data) - len(result))))
                result[start : start + len(data)] = data
        return bytes(result)


def _apply(entries: dict[tuple[int, str], int], change: _EntryChange) -> None:
    for key in change.removed:
        entries.pop(key, None)
    entries.update(change.added)


def write_image(image: Image, directory: Path) -> None:
    """Make a directory hold exactly what a power cut has left."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for path, content in sorted(image.items()):
        if content is None:
            (directory / path).mkdir()
        else:
            (directory / path).write_bytes(content)
