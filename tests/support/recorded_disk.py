"""A disk that remembers in which order it was written, so that a test can cut the power at any moment afterwards.

Within ``RecordedDisk.recording`` every write, truncation, rename, removal, creation and fsync below a directory goes to
the real files and into a journal; so do those of SQLite through ``connect``. ``cuts`` then builds what a power cut
leaves at moments of the journal. The model is that of a file system whose names are journaled and whose data are not:

* A file holds what it held at the last fsync. Each sector written since then may have reached the disk or not.
* A new name, a rename or a removal is durable when the directory was synced. Of those since then a prefix has reached
  the disk, of all directories together or of each directory on its own.
* A file whose name is durable and whose data are not is empty, short or full of old sectors.
"""

from __future__ import annotations

import io
import os
import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from unittest import mock

import apsw

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence

SECTOR: Final = 512
_ROOT: Final = 0
_WRITING: Final = frozenset("wax+")

Edit: TypeAlias = "tuple[int, str, int | None]"
"""Inode of a directory, a name in it, and the inode that it stands for; None removes the name."""


class Write(NamedTuple):
    """Bytes at a position; no data: the file is cut there."""

    inode: int
    position: int
    data: bytes | None


class Sync(NamedTuple):
    """An fsync that has returned."""

    inode: int
    begun: int
    """The length of the journal when it was called: what came later may not be included."""
    names_itself: bool
    """SQLite syncs the directory of a new file together with the file."""


class Rename(NamedTuple):
    """Edits of directories that are there all together or not at all."""

    edits: tuple[Edit, ...]


class Note(NamedTuple):
    """Something that the test wants to know of each moment, such as an acknowledgement."""

    fact: Any


Event: TypeAlias = Write | Sync | Rename | Note


@dataclass
class _File:
    """The durable bytes of a file, and what only the cache has."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Write]] = field(default_factory=list)


class Cut(NamedTuple):
    """What is there when the power comes back."""

    moment: int
    """How many events of the journal have happened."""
    files: dict[str, bytes]
    """By path below the directory."""
    directories: list[str]
    facts: list[Any]
    """The notes so far."""

    def write(self, directory: Path) -> None:
        """Put the files into a directory, which is made."""
        directory.mkdir()
        for name in self.directories:
            (directory / name).mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (directory / name).write_bytes(data)


class RecordedDisk:
    """Records what happens below one directory. Used from several threads.

    Args:
        root: An existing directory; what is in it is durable.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.journal: list[Event] = []
        self._lock = threading.RLock()
        self._directories: dict[int, dict[str, int]] = {_ROOT: {}}
        self._next_inode = 1
        self._descriptors: dict[int, int] = {}
        self._rewritten: dict[int, bytes] = {}
        """What is recorded of files that were emptied when they were opened, by descriptor."""
        self._first_files: dict[int, bytes] = {}
        self._vfs = _Vfs(self)
        for path in sorted(root.rglob("*")):
            inode = self._add(str(path), is_directory=path.is_dir())
            if not path.is_dir():
                self._first_files[inode] = path.read_bytes()
        self.journal.clear()
        self._first_directories = {inode: dict(names) for inode, names in self._directories.items()}

    def connect(self, path: Path) -> ApswDatabase:
        """Open a database whose writes are recorded."""
        return ApswDatabase(path, self.vfs)

    @property
    def vfs(self) -> str:
        """The name by which SQLite knows this disk."""
        return self._vfs.name

    def note(self, fact: Any) -> None:
        """Put a fact into the journal: every cut behind this moment knows it."""
        with self._lock:
            self.journal.append(Note(fact))

    # -- recording

    @contextmanager
    def recording(self, *, really_syncs: bool = False) -> Iterator[None]:
        """Record until the block ends.

        Args:
            really_syncs: Wait for the real disk as well; a test needs not.
        """
        real = {name: getattr(os, name) for name in _PATCHED}
        recorders: dict[str, Any] = {name: self._recorder(name, real, really_syncs) for name in _PATCHED}
        with mock.patch.multiple(os, **recorders), mock.patch.object(io, "open", self._open_python(io.open)):
            yield

    def _recorder(self, name: str, real: dict[str, Any], really_syncs: bool) -> Callable[..., Any]:
        record = getattr(self, f"_{name}")
        if name == "fsync":
            return lambda descriptor: record(real[name] if really_syncs else lambda _: None, descriptor)

        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                return record(real[name], *arguments, **options)

        return call

    def _open(self, real: Any, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        full = self._full(path, options.get("dir_fd"))
        descriptor: int = real(path, flags, *arguments, **options)
        if full is not None:
            inode = self._find(full)
            if inode is None and flags & os.O_CREAT:
                inode = self._add(full, is_directory=False)
            if inode is not None:
                self._descriptors[descriptor] = inode
                if flags & os.O_TRUNC:
                    self.journal.append(Write(inode, 0, None))
                    self._rewritten[descriptor] = b""
        return descriptor

    def _close(self, real: Any, descriptor: int) -> None:
        self._catch_up(descriptor)
        self._rewritten.pop(descriptor, None)
        self._descriptors.pop(descriptor, None)
        real(descriptor)

    def _catch_up(self, descriptor: int) -> None:
        """Record what was written to an emptied file past ``os``, by a Python file on its descriptor."""
        if (known := self._rewritten.get(descriptor)) is not None:
            data = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            if data != known:
                self._rewritten[descriptor] = data
                self._wrote(descriptor, data, 0)

    def _pwritev(self, real: Any, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        written: int = real(descriptor, buffers, position)
        self._wrote(descriptor, b"".join(buffers)[:written], position)
        return written

    def _pwrite(self, real: Any, descriptor: int, data: Any, position: int) -> int:
        written: int = real(descriptor, data, position)
        self._wrote(descriptor, bytes(data)[:written], position)
        return written

    def _wrote(self, descriptor: int, data: bytes, position: int) -> None:
        inode = self._descriptors.get(descriptor)
        if inode is not None:
            self.journal.append(Write(inode, position, data))

    def _ftruncate(self, real: Any, descriptor: int, size: int) -> None:
        real(descriptor, size)
        inode = self._descriptors.get(descriptor)
        if inode is not None:
            self.journal.append(Write(inode, size, None))

    def _fsync(self, real: Any, descriptor: int) -> None:
        with self._lock:
            self._catch_up(descriptor)
            inode, begun = self._descriptors.get(descriptor), len(self.journal)
        real(descriptor)
        if inode is not None:
            with self._lock:
                self.journal.append(Sync(inode, begun, names_itself=False))

    def _rename(self, real: Any, old: Any, new: Any, **options: Any) -> None:
        real(old, new, **options)
        old_path, new_path = self._full(old, None), self._full(new, None)
        if old_path is None or new_path is None:
            return
        inode = self._find(old_path)
        assert inode is not None, old_path
        self._edit((*self._place(old_path), None), (*self._place(new_path), inode))

    _replace = _rename

    def _unlink(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        full = self._full(path, dir_fd)
        real(path, dir_fd=dir_fd)
        if full is not None:
            self._edit((*self._place(full), None))

    _rmdir = _unlink

    def _mkdir(self, real: Any, path: Any, mode: int = 0o777, **options: Any) -> None:
        full = self._full(path, options.get("dir_fd"))
        real(path, mode, **options)
        if full is not None:
            self._add(full, is_directory=True)

    def _open_python(self, real: Any) -> Callable[..., Any]:
        """Wrap ``io.open``: what is written through a buffer is recorded as a whole when it is flushed."""

        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            full = None if isinstance(file, int) else self._full(file, None)
            opened = real(file, mode, *arguments, **options)
            if full is None or not _WRITING & set(mode):
                return opened
            with self._lock:
                inode = self._find(full)
                if inode is None:
                    inode = self._add(full, is_directory=False)
                self._descriptors[opened.fileno()] = inode
            return _PythonFile(self, opened, Path(full), inode)

        return call

    def rewrote(self, inode: int, data: bytes) -> None:
        """Record that a whole file was written."""
        with self._lock:
            self.journal += [Write(inode, 0, None), Write(inode, 0, data)]

    def forget_descriptor(self, descriptor: int) -> None:
        """Note that a descriptor is closed."""
        with self._lock:
            self._descriptors.pop(descriptor, None)

    # -- SQLite's part

    def sqlite_write(self, path: str, position: int, data: bytes | None) -> None:
        """Record a write of SQLite."""
        with self._lock:
            self.journal.append(Write(self._sqlite_inode(path), position, data))

    def sqlite_sync(self, path: str, begun: int) -> None:
        """Record an fsync of SQLite."""
        with self._lock:
            self.journal.append(Sync(self._sqlite_inode(path), begun, names_itself=True))

    def sqlite_delete(self, path: str) -> None:
        """Record that SQLite has removed a file."""
        with self._lock:
            if self._find(path) is not None:
                self._edit((*self._place(path), None))

    def _sqlite_inode(self, path: str) -> int:
        inode = self._find(path)
        return self._add(path, is_directory=False) if inode is None else inode

    # -- names

    def _full(self, path: Any, dir_fd: int | None) -> str | None:
        """Return an absolute path, None for one that is not below the root."""
        name = os.fspath(path)
        if dir_fd is not None and not os.path.isabs(name):
            name = f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{name}"
        name = os.path.abspath(name)
        return name if name == self._root or name.startswith(self._root + "/") else None

    def _parts(self, path: str) -> list[str]:
        return [part for part in path[len(self._root) :].split("/") if part]

    def _find(self, path: str) -> int | None:
        inode: int | None = _ROOT
        for part in self._parts(path):
            inode = self._directories.get(inode, {}).get(part) if inode is not None else None
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        *above, name = self._parts(path)
        directory = self._find("/".join((self._root, *above)))
        assert directory is not None, path
        return directory, name

    def _add(self, path: str, *, is_directory: bool) -> int:
        inode, self._next_inode = self._next_inode, self._next_inode + 1
        if is_directory:
            self._directories[inode] = {}
        self._edit((*self._place(path), inode))
        return inode

    def _edit(self, *edits: Edit) -> None:
        for edit in edits:
            _apply_edit(self._directories, edit)
        self.journal.append(Rename(edits))

    # -- cutting

    def cuts(self, moments: Iterable[int], chance: random.Random) -> Iterator[Cut]:
        """Yield what a power cut leaves at moments of the journal.

        Args:
            moments: Numbers of events that have happened, ascending; a moment may come several times.
            chance: Decides what of the unsynced data has reached the disk.
        """
        state = _State(
            frozenset(self._directories),
            {inode: dict(names) for inode, names in self._first_directories.items()},
            {inode: _File(bytearray(data)) for inode, data in self._first_files.items()},
        )
        facts: list[Any] = []
        done = 0
        for moment in moments:
            for index in range(done, moment):
                event = self.journal[index]
                if isinstance(event, Note):
                    facts.append(event.fact)
                else:
                    state.happen(index, event)
            done = moment
            yield state.cut(moment, list(facts), chance)


class _State:
    """What is durable, and what is pending, at one moment of the journal."""

    def __init__(self, kinds: frozenset[int], directories: dict[int, dict[str, int]], files: dict[int, _File]) -> None:
        self._kinds = kinds
        """The inodes that are directories."""
        self._directories = directories
        self._files = files
        self._pending: list[tuple[int, Rename]] = []

    def happen(self, index: int, event: Write | Sync | Rename) -> None:
        """Take the next event."""
        if isinstance(event, Write):
            self._files.setdefault(event.inode, _File()).pending.append((index, event))
        elif isinstance(event, Rename):
            self._pending.append((index, event))
        else:
            self._sync(event)

    def _sync(self, sync: Sync) -> None:
        file = self._files.get(sync.inode)
        if file is not None:
            due = [write for index, write in file.pending if index < sync.begun]
            file.durable = _applied(file.durable, due)
            file.pending = [item for item in file.pending if item[0] >= sync.begun]
        synced = {sync.inode}
        if sync.names_itself:
            synced |= {at for _, rename in self._pending for at, _, inode in rename.edits if inode == sync.inode}
        kept = []
        for index, rename in self._pending:
            if index < sync.begun and any(directory in synced for directory, _, _ in rename.edits):
                for edit in rename.edits:
                    _apply_edit(self._directories, edit)
            else:
                kept.append((index, rename))
        self._pending = kept

    def cut(self, moment: int, facts: list[Any], chance: random.Random) -> Cut:
        """Return what is left."""
        directories = {inode: dict(names) for inode, names in self._directories.items()}
        for rename in self._surviving_names(chance):
            for edit in rename.edits:
                _apply_edit(directories, edit)
        files: dict[str, bytes] = {}
        found: list[str] = []

        def walk(inode: int, above: str, known: frozenset[int]) -> None:
            for name, child in directories.get(inode, {}).items():
                path = f"{above}{name}"
                if child in self._kinds:
                    assert child not in known
                    found.append(path)
                    walk(child, f"{path}/", known | {child})
                else:
                    file = self._files.get(child, _File())
                    files[path] = bytes(_applied(file.durable, _survivors(file, chance)))

        walk(_ROOT, "", frozenset({_ROOT}))
        return Cut(moment, files, found, facts)

    def _surviving_names(self, chance: random.Random) -> Iterator[Rename]:
        pending = [rename for _, rename in self._pending]
        if chance.random() < 0.5:
            yield from pending[: chance.randrange(len(pending) + 1)]
            return
        limits: dict[int, int] = {}
        counts: dict[int, int] = {}
        for rename in pending:
            for directory in {directory for directory, _, _ in rename.edits}:
                counts[directory] = counts.get(directory, 0) + 1
        limits = {directory: chance.randrange(count + 1) for directory, count in counts.items()}
        seen: dict[int, int] = {}
        for rename in pending:
            concerned = {directory for directory, _, _ in rename.edits}
            for directory in concerned:
                seen[directory] = seen.get(directory, 0) + 1
            if all(seen[directory] <= limits[directory] for directory in concerned):
                yield rename


def _apply_edit(directories: dict[int, dict[str, int]], edit: Edit) -> None:
    directory, name, inode = edit
    names = directories.setdefault(directory, {})
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def _applied(durable: bytearray, writes: Iterable[Write]) -> bytearray:
    result = bytearray(durable)
    for _, position, data in writes:
        if data is None:
            result.extend(bytes(max(0, position - len(result))))
            del result[position:]
        else:
            result.extend(bytes(max(0, position + len(data) - len(result))))
            result[position : position + len(data)] = data
    return result


def _survivors(file: _File, chance: random.Random) -> Iterator[Write]:
    fate = chance.choice(("none", "all", "some", "prefix"))
    if fate == "none":
        return
    limit = chance.randrange(len(file.pending) + 1)
    for index, (_, write) in enumerate(file.pending):
        if write.data is None:
            if fate != "prefix" or index < limit:
                yield write
            continue
        for start in range(0, len(write.data), SECTOR):
            if fate == "all" or (fate == "prefix" and index < limit) or (fate == "some" and chance.random() < 0.5):
                yield Write(write.inode, write.position + start, write.data[start : start + SECTOR])


_PATCHED: Final = (
    "open", "close", "pwritev", "pwrite", "ftruncate", "fsync", "rename", "replace", "unlink", "rmdir", "mkdir",
)  # fmt: skip


class _PythonFile:
    """A file of ``io.open``; what it holds is recorded at each flush."""

    def __init__(self, disk: RecordedDisk, real: Any, path: Path, inode: int) -> None:
        self._disk = disk
        self._real = real
        self._path = path
        self._inode = inode
        self._is_dirty = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __enter__(self) -> _PythonFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, text: Any) -> Any:
        """Write to the buffer."""
        self._is_dirty = True
        return self._real.write(text)

    def flush(self) -> None:
        """Flush and record."""
        self._real.flush()
        if not self._is_dirty:
            return
        self._is_dirty = False
        size = os.fstat(self._real.fileno()).st_size
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            self._disk.rewrote(self._inode, os.pread(descriptor, size, 0))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Record and close."""
        if not self._real.closed:
            self.flush()
            self._disk.forget_descriptor(self._real.fileno())
            self._real.close()


class _Vfs(apsw.VFS):
    """SQLite's files over the real ones, recorded."""

    def __init__(self, disk: RecordedDisk) -> None:
        self._disk = disk
        self.name = f"recorded-{id(self):x}"
        super().__init__(self.name, base="unix")

    def xOpen(self, name: Any, flags: Any) -> _SqliteFile:  # noqa: N802 - named by SQLite
        return _SqliteFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - named by SQLite
        super().xDelete(filename, syncdir)
        self._disk.sqlite_delete(filename)


class _SqliteFile(apsw.VFSFile):
    def __init__(self, disk: RecordedDisk, name: Any, flags: Any) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - named by SQLite
        super().xWrite(data, offset)
        self._disk.sqlite_write(self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - named by SQLite
        super().xTruncate(newsize)
        self._disk.sqlite_write(self._name, newsize, None)

    def xSync(self, flags: int) -> None:  # noqa: N802 - named by SQLite; the real disk need not wait
        self._disk.sqlite_sync(self._name, len(self._disk.journal))


class ApswDatabase:
    """The store's view of a connection, over apsw; checkpoints come often, so that power cuts meet them too."""

    def __init__(self, path: Path, vfs: str) -> None:
        self._real = apsw.Connection(str(path), vfs=vfs)

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Sequence[Any]]:
        """Run one statement and return its rows."""
        try:
            often = sql.replace("wal_autocheckpoint = 4000", "wal_autocheckpoint = 40")
            return list(self._real.execute(often, tuple(parameters)))
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from error

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Run one statement once per row of parameters."""
        try:
            return list(self._real.executemany(sql, parameters))
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._real.close()
