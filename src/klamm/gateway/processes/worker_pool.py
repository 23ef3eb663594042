"""Worker processes of a gateway. This process accepts all connections and passes each one to a worker.

Sockets that several processes listen on (SO_REUSEPORT) would be simpler, but the kernel then selects the process by a
hash of the addresses, so that two of few busy connections often share a process. Here the worker with the fewest
connections gets the next one.

A worker is a whole gateway without ports: it asks policies, requests the topology and relays by itself. A worker that
ends is replaced; its clients reconnect. When this process ends, its workers end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from klamm.gateway.processes import control
from klamm.monitoring.exposition import counters, merged
from klamm.properties import SettingsError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from klamm.gateway.frames.peer import Peer
    from klamm.page.views import Document
    from klamm.server.listeners import Address

logger = logging.getLogger(__name__)

_RESTART_S: Final = 1.0
_ANSWER_S: Final = 3.0
"""Time in seconds in which a worker has to report its status."""
_KEPT_S: Final = 1.0
"""Time in seconds for which the reported status is used, however often it is requested."""
_SILENT_S: Final = 10.0
"""Time in seconds without a message after which a worker is not ready. It sends one per second unless it hangs."""
_MAX_WAITING: Final = 4096
"""Number of accepted connections that wait until a worker can take one. The socket to a worker holds some hundreds."""
_AGAIN_S: Final = 0.01
"""Time in seconds after which waiting connections are offered again."""
_STOP_S: Final = 5.0
"""Time in seconds beyond the grace period after which a worker is killed."""


class Worker:
    """One worker process.

    Args:
        number: Number of the worker, from 0 on.
        arguments: Command line of the gateway.
        on_message: Function that receives the messages of the worker.
    """

    def __init__(self, number: int, arguments: Sequence[str], on_message: Callable[[Worker, control.Message], None]):
        self.number = number
        self.connections = 0
        """Open connections: those that the worker reported last, and those passed to it since."""
        self.passed = 0
        """Number of all connections that were passed to the process."""
        self.page = ""
        """Latest page of metrics."""
        self.ended_page = ""
        """Counters of the ended processes. Without them the sums would fall, which Prometheus takes for a restart of
        all processes, and would count the others twice.
        """
        self.why_not_ready: str | None = "a worker process starts"
        """Reason that the worker reported last. See ``obstacle`` for one that reports nothing."""
        self.remark: str | None = None
        """Warning that the worker reported last; None if there is none."""
        self.heard_at: float | None = None
        """Time of its latest message on the monotonic clock; None before the first one."""
        self.is_up = False
        """Whether the process has started, and has not ended. It may be unable to reach the upstream."""
        self.was_ready = False
        """Whether the process has ever started."""
        self.failure: str | None = None
        """Reason why the worker ended at its start; None if it did not."""
        self.has_reported: Final = asyncio.Event()
        """Set when the process has started, or has ended."""
        self._arguments = arguments
        self._on_message = on_message
        self.end: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._parts: dict[str, list[str]] = {}
        self._question: tuple[int, asyncio.Future[Document | None]] | None = None

    @property
    def obstacle(self) -> str | None:
        """Return the reason why the worker should get no connections at present; None if it may."""
        if self.why_not_ready is None and self.heard_at is not None and time.monotonic() - self.heard_at > _SILENT_S:
            return "a worker process does not respond"
        return self.why_not_ready

    async def run(self) -> int:
        """Run the process; return its exit code.

        Raises:
            OSError: The machine has no process, memory or file descriptor left for it.
        """
        self.failure = self.heard_at = None
        end, theirs = control.channel()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "klamm.gateway.worker",
                str(theirs.fileno()),
                str(self.number),
                *self._arguments,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            end.close()
            raise
        finally:
            theirs.close()
        loop, self.end = asyncio.get_running_loop(), end
        loop.add_reader(end.fileno(), self.receive, end)
        try:
            return await self._process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            raise
        finally:
            self.receive(end)  # the reason why it ended may not have been read yet
            self.is_up = False
            self.why_not_ready = "a worker process has ended"
            loop.remove_reader(end.fileno())
            end.close()
            self.end = None
            self.connections = self.passed = 0
            if self.page:
                self.ended_page = merged([counters(page) for page in (self.ended_page, self.page)])
            self.page, self._parts = "", {}
            self._settle_question(None)
            self.has_reported.set()

    def send(self, message: control.Message, descriptor: int | None = None) -> bool:
        """Send a message; return whether the worker can receive it."""
        if self.end is None:
            return False
        try:
            return control.send(self.end, message, descriptor)
        except OSError:
            return False

    def receive(self, end: socket.socket) -> None:
        """Handle all messages that have arrived from the process."""
        with contextlib.suppress(BlockingIOError):
            while True:
                message, _ = control.receive(end)
                if message is None:
                    asyncio.get_running_loop().remove_reader(end.fileno())
                    return
                self.heard_at = time.monotonic()
                self._on_message(self, message)

    async def status(self, number: int) -> Document | None:
        """Ask the process for its status. Return None if it does not answer in time.

        Args:
            number: Number of the question.
        """
        answer: asyncio.Future[Document | None] = asyncio.get_running_loop().create_future()
        if not self.is_up or not self.send({"status": number}):
            return None
        self._question = number, answer
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            self._question = None

    def _settle_question(self, status: Document | None) -> None:
        """Pass a status to the one who asked for it; None if the process has ended."""
        if self._question is None:
            return
        number, answer = self._question
        if not answer.done() and (status is None or status["number"] == number):
            answer.set_result(status)

    def take_part(self, kind: str, part: str, *, is_first: bool, is_last: bool) -> None:
        """Store a part of the page of metrics, or of the status."""
        if is_first:
            self._parts[kind] = []
        parts = self._parts.setdefault(kind, [])
        parts.append(part)
        if not is_last:
            return
        text = "".join(self._parts.pop(kind))
        if kind == "page":
            self.page = text
        else:
            self._settle_question(json.loads(text))


class WorkerPool:
    """The worker processes of a gateway. Used on the event loop only.

    Args:
        count: Number of processes.
        arguments: Command line of the gateway.
        grace_s: Time that requests in flight may take at the end, in seconds.
    """

    def __init__(self, count: int, arguments: Sequence[str], grace_s: float) -> None:
        self.workers = [Worker(number, arguments, self._on_message) for number in range(count)]
        self._grace_s = grace_s
        self._tasks: list[asyncio.Task[None]] = []
        self._base: tuple[Address, int] | None = None
        self.is_stopping = False
        self._turn = 0
        self._waiting: deque[tuple[socket.socket, Peer]] = deque()
        """Accepted connections that no worker could take, oldest first."""
        self._offer: asyncio.TimerHandle | None = None
        self._questions = 0
        self._asking = asyncio.Lock()
        self._statuses: list[Document | None] = []
        self._asked_at = -_KEPT_S
        self.on_node: Callable[[int, str, int], None] = lambda *_: None
        """Function that receives the address of a broker that a worker has found."""

    @property
    def pages(self) -> list[str]:
        """Latest pages of metrics of the workers, and the counters of those that have ended."""
        return [page for worker in self.workers for page in (worker.ended_page, worker.page) if page]

    @property
    def processes(self) -> list[Document]:
        """State of each worker as a JSON object."""
        return [
            {"number": worker.number, "connections": worker.connections, "why_not_ready": worker.obstacle}
            for worker in self.workers
        ]

    async def statuses(self) -> list[Document | None]:
        """Return the status of each worker; None for one that does not answer in time."""
        now = asyncio.get_running_loop().time
        async with self._asking:
            if now() - self._asked_at >= _KEPT_S:
                self._questions += 1
                statuses = (worker.status(self._questions) for worker in self.workers)
                self._statuses = list(await asyncio.gather(*statuses))
                self._asked_at = now()
            return self._statuses

    def why_not_ready(self) -> str | None:
        """Return the reason why a worker should get no connections at present; None if all of them may."""
        return next((why for worker in self.workers if (why := worker.obstacle) is not None), None)

    def remark(self) -> str | None:
        """Return the warning of a worker; None if none has one."""
        return next((worker.remark for worker in self.workers if worker.remark is not None), None)

    async def start(self) -> None:
        """Start the processes, and wait until they are ready.

        Raises:
            SettingsError: A worker cannot start.
        """
        self._tasks = [asyncio.create_task(self.keep(worker)) for worker in self.workers]
        for worker in self.workers:
            await worker.has_reported.wait()
            if not worker.is_up:
                raise SettingsError(worker.failure or "a worker process has ended, see the log")

    def announce(self, base: Address, listen_port: int) -> None:
        """Send the address that clients connect to, and the port that the gateway listens on, to all workers."""
        self._base = base, listen_port
        for worker in self.workers:
            self._send_base(worker)

    def deal(self, accepted: socket.socket, peer: Peer) -> None:
        """Pass an accepted connection to the worker with the fewest connections, of those that are ready if any is.

        A worker that has just been started again enforces no client configs until it has read them. One that hangs
        serves nothing. When many clients come at once, some wait until a worker has taken those before them.
        """
        self._waiting.append((accepted, peer))
        if len(self._waiting) > _MAX_WAITING:
            _close(*self._waiting.popleft())
        if self._offer is None:
            self._offer_again()

    def _offer_again(self) -> None:
        """Pass on the waiting connections, as far as the workers can take them."""
        self._offer = None
        while self._waiting and self._pass_on(*self._waiting[0]):
            self._waiting.popleft()
        if not any(worker.is_up for worker in self.workers):
            self._close_waiting()
        if self._waiting:
            self._offer = asyncio.get_running_loop().call_later(_AGAIN_S, self._offer_again)

    def _close_waiting(self) -> None:
        while self._waiting:
            _close(*self._waiting.popleft())

    def _pass_on(self, accepted: socket.socket, peer: Peer) -> bool:
        """Pass a connection to a worker, and close it here; return False if none can take it at present."""
        message = {"open": [peer.host, peer.port, peer.node_id, peer.is_bootstrap]}
        self._turn += 1
        count = len(self.workers)
        order = sorted(
            self.workers,
            key=lambda each: (
                each.obstacle is not None,
                each.connections,
                (each.number - self._turn) % count,
            ),
        )
        for worker in order:
            if worker.is_up and worker.send(message, accepted.fileno()):
                accepted.close()
                worker.connections += 1
                worker.passed += 1
                return True
        return False

    def reload(self) -> None:
        """Reload policies and files in all workers, as on SIGHUP."""
        for worker in self.workers:
            worker.send({"reload": True})

    async def stop(self) -> None:
        """Stop the workers after they have served their requests in flight. Those that still start are killed."""
        self.is_stopping = True
        if self._offer is not None:
            self._offer.cancel()
        self._close_waiting()
        for worker, task in zip(self.workers, self._tasks, strict=False):  # there are no tasks before the start
            worker.send({"stop": True})
            if not worker.is_up:  # it may not read the message for long, such as while a policy is being created
                task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._grace_s + _STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def keep(self, worker: Worker) -> None:
        """Run a worker, and replace it when it ends."""
        while not self.is_stopping:
            try:
                code = await worker.run()
            except OSError as error:
                worker.failure = f"a worker process cannot be started: {error}"
                worker.has_reported.set()
                ended = f"cannot be started: {error}"
            else:
                ended = f"ended with exit code {code}" + (f": {worker.failure}" if worker.failure else "")
            if self.is_stopping or not worker.was_ready:
                return
            logger.error("Worker process %d %s; it is started again", worker.number, ended)
            await asyncio.sleep(_RESTART_S)

    def _send_base(self, worker: Worker) -> None:
        if self._base is not None:
            base, listen_port = self._base
            worker.send({"base": [base.host, base.port, listen_port]})

    def _on_message(self, worker: Worker, message: control.Message) -> None:
        match message:
            case {"ready": True, "why_not_ready": why}:
                self._send_base(worker)
                worker.why_not_ready = why
                worker.is_up = worker.was_ready = True
                worker.has_reported.set()
            case {"failed": str(reason)}:
                worker.failure = reason
            case {"node": [int(node_id), str(host), int(port)]}:
                self.on_node(node_id, host, port)
            case {"connections": int(count), "received": int(received), "why_not_ready": why}:
                worker.connections = count + worker.passed - received
                worker.why_not_ready = why
                worker.remark = message.get("remark")
            case {"part": [str(kind), str(part)], "is_first": bool(is_first), "is_last": bool(is_last)}:
                worker.take_part(kind, part, is_first=is_first, is_last=is_last)
            case _:
                logger.warning("Worker process %d sent an unknown message", worker.number)


def _close(accepted: socket.socket, peer: Peer) -> None:
    accepted.close()
    logger.warning("Connection of %s closed: no worker process can take it", peer.name)
