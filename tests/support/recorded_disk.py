"""A recorded disk: tests can cut the power afterwards, at any moment, with everything that was not synced at risk.

Within ``RecordedDisk.recording`` every write, truncation, rename, removal, creation and fsync below a directory goes to
the real files and into a journal. The calls of SQLite are recorded through ``connect``. ``cuts`` then builds what a
power cut leaves at moments of the journal:

* A file holds what it held at its last fsync. Later writes and truncations may have reached the disk or not, sector by
  sector.
* A new name, a rename or a removal is durable once its directory was synced. Later ones may have reached the disk or
  not. A rename is there as a whole or not at all.

Both follow one of four fates: ``none`` or ``all`` of the unsynced changes survive, a ``prefix`` of them in the order in
which they were made, or each one at ``random``. Names and every single file have their own fate. A prefix of names is
taken over all directories or for each directory separately, as file systems with one or with several journals do.

``syncfs`` makes everything durable that was changed before. Neither it nor fsync reaches the real disk, which makes
simulated runs fast. When the recording ends, the journal is compared with the real files: a change made by a function
that is not recorded fails the test instead of being missed.
"""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from unittest import mock

import apsw

from klamm.storage.log import flusher

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence

SECTOR: Final = 512
FATES: Final = ("none", "all", "prefix", "random")
_ROOT: Final = 0
_EVERYTHING: Final = -1
"""Number that stands for all files and directories in a sync of the whole file system."""
_WRITING: Final = frozenset("wax+")
_SHARED_MEMORY: Final = "-shm"
"""End of the name of a file that SQLite uses as memory and builds again at each start."""
_SYNCS_ITS_DIRECTORY: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
"""SQLite syncs the directory together with the first sync of such a file, but not with that of a database."""

T = TypeVar("T")
Edit: TypeAlias = "tuple[int, str, int | None]"
"""Inode of a directory, a name in it, and the inode that the name points to; None removes the name."""


class Write(NamedTuple):
    """Bytes written at a position. Without data, the file is truncated or extended to that size."""

    inode: int
    position: int
    data: bytes | None


class SyncBegun(NamedTuple):
    """An fsync that has been called. The disk is as before."""

    inode: int


class Sync(NamedTuple):
    """An fsync that has returned."""

    inode: int
    begun: int
    """Index of its ``SyncBegun``. Changes after that may not be included."""


class Rename(NamedTuple):
    """Edits of directories that survive together or not at all."""

    edits: tuple[Edit, ...]

    def directories(self) -> set[int]:
        """Return the directories whose sync makes this durable."""
        return {directory for directory, _, _ in self.edits}


class Note(NamedTuple):
    """A fact that the test needs at each moment, such as an acknowledgement."""

    fact: Any


class Entry(NamedTuple):
    """A line of the journal."""

    operation: str
    """Name of the called function."""
    event: Write | SyncBegun | Sync | Rename | Note


@dataclass
class _File:
    """The durable bytes of a file, and the writes that only the cache has."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Write]] = field(default_factory=list)


class Cut(NamedTuple):
    """State of the disk after a power cut."""

    moment: int
    """Number of journal entries before the cut."""
    operation: str
    """Name of the last of them, empty at the beginning."""
    files: dict[str, bytes]
    """Contents by path below the directory."""
    directories: list[str]
    facts: list[Any]
    """The notes so far."""

    def write(self, directory: Path) -> None:
        """Make a directory hold exactly these files."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in self.directories:
            (directory / name).mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (directory / name).write_bytes(data)


class RecordedDisk:
    """A recorder of all changes below one directory. Used from several threads.

    Args:
        root: An existing directory. Its present contents count as durable.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.journal: list[Entry] = []
        self.before_each: Callable[[], None] = lambda: None
        """Called before each entry that is not a note, in the thread that makes the change. It may call ``note``."""
        self.loses_synced_data = False
        """For controls: a disk that lies. fsync returns and makes nothing durable, so checkers must find losses."""
        self._lock = threading.RLock()
        self._operation = ""
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
        """Name of this disk's VFS in SQLite."""
        return self._vfs.name

    def note(self, fact: Any) -> None:
        """Put a fact into the journal. Every cut after this moment knows it."""
        with self._during("note"):
            self._record(Note(fact))

    # -- recording

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record until the block ends.

        Raises:
            AssertionError: The files are not what the journal says, so a change was made past the recorded functions.
        """
        real = {name: getattr(os, name) for name in _PATCHED}
        recorders: dict[str, Any] = {name: self._recorder(name, function) for name, function in real.items()}
        with (
            mock.patch.multiple(os, fsync=self._fsync, **recorders),
            mock.patch.object(io, "open", self._open_python(io.open)),
            mock.patch.object(flusher, "syncfs", self.syncfs),
            mock.patch.object(flusher, "is_trusted", return_value=True),
        ):
            yield
        self._compare_with_real_files()

    def _recorder(self, name: str, real: Any) -> Callable[..., Any]:
        record = getattr(self, f"_{name}")

        def call(*arguments: Any, **options: Any) -> Any:
            with self._during(name):
                return record(real, *arguments, **options)

        return call

    @contextmanager
    def _during(self, operation: str) -> Iterator[None]:
        """Hold the lock and record under a name."""
        with self._lock:
            before, self._operation = self._operation, operation
            try:
                yield
            finally:
                self._operation = before

    def _record(self, event: Write | SyncBegun | Sync | Rename | Note) -> None:
        if not isinstance(event, Note):
            self.before_each()
        self.journal.append(Entry(self._operation, event))

    def _compare_with_real_files(self) -> None:
        paths = dict(_walk(self._directories))
        real = {path.relative_to(self._root).as_posix(): path for path in Path(self._root).rglob("*")}
        unknown = {name for name in paths.keys() ^ real.keys() if not name.endswith(_SHARED_MEMORY)}
        assert not unknown, f"created or removed past the recorded functions: {sorted(unknown)}"
        writes: dict[int, list[Write]] = {}
        for _, event in self.journal:
            if isinstance(event, Write):
                writes.setdefault(event.inode, []).append(event)
        for name, inode in paths.items():
            if inode not in self._directories:
                recorded = _applied(bytearray(self._first_files.get(inode, b"")), writes.get(inode, ()))
                assert real[name].read_bytes() == recorded, f"written past the recorded functions: {name}"

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
                    self._record(Write(inode, 0, None))
                    self._rewritten[descriptor] = b""
        return descriptor

    def _close(self, real: Any, descriptor: int) -> None:
        self._catch_up(descriptor)
        self._rewritten.pop(descriptor, None)
        self._descriptors.pop(descriptor, None)
        real(descriptor)

    def _catch_up(self, descriptor: int) -> None:
        """Record what a Python file on the descriptor of an emptied file has written past ``os``."""
        if (content := self._rewritten.get(descriptor)) is not None:
            data = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            if data != content:
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

    def _write(self, real: Any, descriptor: int, data: Any) -> int:
        written: int = real(descriptor, data)
        if descriptor in self._descriptors:
            self._wrote(descriptor, bytes(data)[:written], os.lseek(descriptor, 0, os.SEEK_CUR) - written)
        return written

    def _wrote(self, descriptor: int, data: bytes, position: int) -> None:
        inode = self._descriptors.get(descriptor)
        if inode is not None:
            self._record(Write(inode, position, data))

    def _ftruncate(self, real: Any, descriptor: int, size: int) -> None:
        real(descriptor, size)
        inode = self._descriptors.get(descriptor)
        if inode is not None:
            self._record(Write(inode, size, None))

    def _fsync(self, descriptor: int) -> None:
        with self._during("fsync"):
            self._catch_up(descriptor)
            inode = self._descriptors.get(descriptor)
            if inode is None:
                return
            begun = self._begin_sync(inode)
        # Between the two, other threads may write. This fsync does not make such writes durable.
        with self._during("fsync"):
            self._end_sync(inode, begun)

    def syncfs(self, _: int) -> None:
        with self._during("syncfs"):
            for descriptor in tuple(self._rewritten):
                self._catch_up(descriptor)
            begun = self._begin_sync(_EVERYTHING)
        with self._during("syncfs"):
            self._end_sync(_EVERYTHING, begun)

    def _begin_sync(self, inode: int) -> int:
        with self._during(f"before {self._operation}"):
            self._record(SyncBegun(inode))
        return len(self.journal) - 1

    def _end_sync(self, inode: int, begun: int) -> None:
        with self._during(f"after {self._operation}"):
            if self.loses_synced_data:
                self._record(SyncBegun(inode))
            else:
                self._record(Sync(inode, begun))

    def _rename(self, real: Any, old: Any, new: Any, **options: Any) -> None:
        real(old, new, **options)
        old_path, new_path = self._full(old, None), self._full(new, None)
        if old_path is None or new_path is None:
            return
        self._edit((*self._place(old_path), None), (*self._place(new_path), self._inode(old_path)))

    _replace = _rename

    def _unlink(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        full = self._full(path, dir_fd)
        real(path, dir_fd=dir_fd)
        if full is not None:
            self._edit((*self._place(full), None))

    _remove = _rmdir = _unlink

    def _link(self, real: Any, old: Any, new: Any) -> None:
        real(old, new)
        old_path, new_path = self._full(old, None), self._full(new, None)
        if old_path is not None and new_path is not None:
            self._edit((*self._place(new_path), self._inode(old_path)))

    def _mkdir(self, real: Any, path: Any, mode: int = 0o777, **options: Any) -> None:
        full = self._full(path, options.get("dir_fd"))
        real(path, mode, **options)
        if full is not None:
            self._add(full, is_directory=True)

    def _open_python(self, real: Any) -> Callable[..., Any]:
        """Wrap ``io.open``. A file that is written through a buffer is recorded as a whole when it is flushed."""

        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            full = None if isinstance(file, int) else self._full(file, None)
            opened = real(file, mode, *arguments, **options)
            if full is None or not _WRITING & set(mode):
                return opened
            with self._during("open"):
                inode = self._find(full)
                if inode is None:
                    inode = self._add(full, is_directory=False)
                self._descriptors[opened.fileno()] = inode
            return _PythonFile(self, opened, Path(full), inode)

        return call

    def rewrote(self, inode: int, data: bytes) -> None:
        """Record that a whole file was written."""
        with self._during("write"):
            self._record(Write(inode, 0, None))
            self._record(Write(inode, 0, data))

    def forget_descriptor(self, descriptor: int) -> None:
        """Note that a descriptor is closed."""
        with self._lock:
            self._descriptors.pop(descriptor, None)

    # -- SQLite's part

    def sqlite_open(self, path: str) -> None:
        """Record a file that SQLite may have created."""
        with self._during("SQLite open"):
            if self._find(path) is None:
                self._add(path, is_directory=False)

    def sqlite_write(self, path: str, position: int, data: bytes | None) -> None:
        """Record a write of SQLite."""
        with self._during("SQLite write"):
            self._record(Write(self._inode(path), position, data))

    def sqlite_sync(self, path: str) -> None:
        """Record an fsync of SQLite, of a file or a directory."""
        with self._during("SQLite fsync"):
            inode = self._inode(path)
            self._end_sync(inode, self._begin_sync(inode))

    def sqlite_delete(self, path: str) -> None:
        """Record that SQLite has removed a file."""
        with self._during("SQLite delete"):
            if self._find(path) is not None:
                self._edit((*self._place(path), None))

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

    def _inode(self, path: str) -> int:
        inode = self._find(path)
        assert inode is not None, path
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        *above, name = self._parts(path)
        return self._inode("/".join((self._root, *above))), name

    def _add(self, path: str, *, is_directory: bool) -> int:
        inode, self._next_inode = self._next_inode, self._next_inode + 1
        if is_directory:
            self._directories[inode] = {}
        self._edit((*self._place(path), inode))
        return inode

    def _edit(self, *edits: Edit) -> None:
        rename = Rename(edits)
        _apply_edits(self._directories, rename)
        self._record(rename)

    # -- cutting

    def cuts(self, moments: Iterable[int], chance: random.Random, *, fate: str | None = None) -> Iterator[Cut]:
        """Yield the state that a power cut leaves at moments of the journal.

        Args:
            moments: Numbers of entries before the cut, ascending. A moment may come several times.
            chance: The random choice of the unsynced changes that survive.
            fate: One of ``FATES`` for all unsynced changes. None chooses one for the names and one for each file.
        """
        state = _State(
            frozenset(self._directories),
            {inode: dict(names) for inode, names in self._first_directories.items()},
            {inode: _File(bytearray(data)) for inode, data in self._first_files.items()},
        )
        facts: list[Any] = []
        done, operation = 0, ""
        for moment in moments:
            for index in range(done, moment):
                operation, event = self.journal[index]
                if isinstance(event, Note):
                    facts.append(event.fact)
                else:
                    state.happen(index, event)
            done = moment
            yield Cut(moment, operation, *state.left(chance, fate), list(facts))


class _State:
    """The durable and the pending changes at one moment of the journal."""

    def __init__(self, kinds: frozenset[int], directories: dict[int, dict[str, int]], files: dict[int, _File]) -> None:
        self._kinds = kinds
        """The inodes that are directories."""
        self._directories = directories
        self._files = files
        self._pending: list[tuple[int, Rename]] = []

    def happen(self, index: int, event: Write | SyncBegun | Sync | Rename) -> None:
        """Apply the next event."""
        match event:
            case Write():
                self._files.setdefault(event.inode, _File()).pending.append((index, event))
            case Rename():
                self._pending.append((index, event))
            case Sync():
                self._sync(event)

    def _sync(self, sync: Sync) -> None:
        whole = sync.inode == _EVERYTHING
        for file in self._files.values() if whole else filter(None, (self._files.get(sync.inode),)):
            due = [write for index, write in file.pending if index < sync.begun]
            file.durable = _applied(file.durable, due)
            file.pending = [item for item in file.pending if item[0] >= sync.begun]
        kept = []
        for index, rename in self._pending:
            if index < sync.begun and (whole or sync.inode in rename.directories()):
                _apply_edits(self._directories, rename)
            else:
                kept.append((index, rename))
        self._pending = kept

    def left(self, chance: random.Random, fate: str | None) -> tuple[dict[str, bytes], list[str]]:
        """Return the files and the directories that a power cut leaves."""
        directories = {inode: dict(names) for inode, names in self._directories.items()}
        for rename in self._surviving_names(chance, fate or chance.choice(FATES)):
            _apply_edits(directories, rename)
        files: dict[str, bytes] = {}
        lost: list[str] = []
        for path, inode in _walk(directories):
            if inode in self._kinds:
                lost.append(path)
            else:
                file = self._files.get(inode, _File())
                sectors = [sector for _, write in file.pending for sector in _sectors(write)]
                surviving = _survivors(sectors, chance, fate or chance.choice(FATES))
                files[path] = bytes(_applied(file.durable, surviving))
        return files, lost

    def _surviving_names(self, chance: random.Random, fate: str) -> Sequence[Rename]:
        pending = [rename for _, rename in self._pending]
        if fate != "prefix" or chance.random() < 0.5:
            return _survivors(pending, chance, fate)
        counts = Counter(directory for rename in pending for directory in rename.directories())
        limits = {directory: chance.randrange(count + 1) for directory, count in counts.items()}
        seen: Counter[int] = Counter()
        surviving = []
        for rename in pending:
            seen.update(rename.directories())
            if all(seen[directory] <= limits[directory] for directory in rename.directories()):
                surviving.append(rename)
        return surviving


def _survivors(changes: Sequence[T], chance: random.Random, fate: str) -> Sequence[T]:
    """Return the unsynced changes that have reached the disk, in order."""
    match fate:
        case "none":
            return ()
        case "all":
            return changes
        case "prefix":
            return changes[: chance.randrange(len(changes) + 1)]
        case "random":
            return [change for change in changes if chance.random() < 0.5]
        case _:
            raise ValueError(fate)


def _sectors(write: Write) -> Iterator[Write]:
    """Split a write at the borders of sectors. A truncation is one piece."""
    if write.data is None:
        yield write
        return
    start = 0
    while start < len(write.data):
        end = start + SECTOR - (write.position + start) % SECTOR
        yield Write(write.inode, write.position + start, write.data[start:end])
        start = end


def _walk(directories: dict[int, dict[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield paths and inodes, each directory before its contents."""
    waiting: list[tuple[str, int, frozenset[int]]] = [("", _ROOT, frozenset({_ROOT}))]
    while waiting:
        above, directory, parents = waiting.pop()
        for name, inode in directories.get(directory, {}).items():
            assert inode not in parents, f"{above}{name} contains itself"
            yield f"{above}{name}", inode
            waiting.append((f"{above}{name}/", inode, parents | {inode}))


def _apply_edits(directories: dict[int, dict[str, int]], rename: Rename) -> None:
    for directory, name, inode in rename.edits:
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


_PATCHED: Final = (
    "open", "close", "pwritev", "pwrite", "write", "ftruncate",
    "rename", "replace", "link", "unlink", "remove", "rmdir", "mkdir",
)  # fmt: skip


class _PythonFile:
    """A file of ``io.open``. Its content is recorded at each flush."""

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
        super().xDelete(filename, False)
        self._disk.sqlite_delete(filename)
        if syncdir:
            self._disk.sqlite_sync(os.path.dirname(filename))


class _SqliteFile(apsw.VFSFile):
    def __init__(self, disk: RecordedDisk, name: Any, flags: Any) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._syncs_its_directory = bool(flags[0] & _SYNCS_ITS_DIRECTORY)
        disk.sqlite_open(self._name)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - named by SQLite
        super().xWrite(data, offset)
        self._disk.sqlite_write(self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - named by SQLite
        super().xTruncate(newsize)
        self._disk.sqlite_write(self._name, newsize, None)

    def xSync(self, flags: int) -> None:  # noqa: N802 - named by SQLite; the real disk need not wait
        self._disk.sqlite_sync(self._name)
        if self._syncs_its_directory:
            self._disk.sqlite_sync(os.path.dirname(self._name))
            self._syncs_its_directory = False


class ApswDatabase:
    """A connection as the store uses it, over apsw. Checkpoints are frequent, so that power cuts meet them too."""

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
