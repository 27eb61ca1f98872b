"""Processes that compile beside this one, since Python and LLVM have one lock each, and this process two of them.

    start        ──Popen──►  a clean process that imports the compiler, and forks itself until there are enough
    call(f, x)   ──(f, x)──►  one that is idle; none is: f(x) here
                 ◄──f(x)────

They are clean, never a fork of this process, which may have threads of other libraries. They are started when many
kernels have to be compiled, are reused, and are ended when none was compiled for a while. A process does one request
at a time. It has two connections, so that the next request is there when one is done, and ends when one of them is
closed: also when this process is killed.

What fails there is done again here: an error is raised as if there were no such processes, and one that was killed
costs time alone. Functions and arguments are pickled: they are no files, and nobody else can write into the sockets.
Nothing here takes a lock that a call which interrupts another one would wait for: see ir/reentry.py.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from taskc.ir import spans
from taskc.ir.reentry import Turn, may_wait

if TYPE_CHECKING:
    from socket import socket
    from subprocess import Popen

P = ParamSpec("P")
T = TypeVar("T")

# More of them would wait for this process; and a process that has loaded Apple's libraries can't be forked.
_MOST = 1 if sys.platform == "darwin" else 7
# Kernels of a program for which processes are started, which takes as long as compiling ten.
LEAST = 20
_IDLE = 60.0  # seconds without a request after which they are ended
_LOOK = 1.0  # seconds between two looks whether they are idle
_AGAIN = 10.0  # seconds after the end of one before others are started
_ANSWER = 100.0  # seconds after which a process that doesn't answer is given up
_CONNECTIONS = 2  # of a process
_SIZE = 8  # bytes of a message's length
_SERVE = "import sys; sys.path[:] = sys.argv[2:]; from taskc.backend.cpu.processes import serve; serve(sys.argv[1])"
# NumPy's threads would keep processors busy, and a process that has threads can't be forked.
_ENVIRONMENT = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}

logger = logging.getLogger(__name__)


class _Thread(threading.local):
    """kernels  the number that this thread and others compile together; None where it compiles alone
    most     processes that may be started for them
    """

    kernels: int | None = None
    most = 0


_here = _Thread()


_ready: list[Callable[[], Any]] = []
_processes: list[_Process] = []
_idle: deque[_Process] = deque()
_first: list[Popen[bytes]] = []  # forked the others, and ends after them
_times = {"used": 0.0, "ended": -_AGAIN}
_turn = Turn()


class _Process:
    """This end of a connection to a process."""

    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self._is_ready = False

    def is_ready(self) -> bool:
        """Whether it takes requests. One of another version of the compiler, or for another processor, never does."""
        if self._is_ready:
            return True
        import socket

        try:
            self._connection.setblocking(False)
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass  # closed: the next line fails
        self._connection.settimeout(_ANSWER)
        value, totals = pickle.loads(_receive(self._connection))
        if value != _ready[0]():
            raise ValueError("it has another compiler")
        spans.add(totals)
        self._is_ready = True
        return True

    def ask(self, message: bytes) -> bytes:
        _send(self._connection, message)
        return _receive(self._connection)

    def end(self) -> None:
        """End the process whatever it does. A thread that waits for its answer gets an EOFError."""
        with suppress(OSError):  # it has ended
            self._connection.shutdown(2)

    def close(self) -> None:
        """Forget the process, which ends with the last copy of the connection."""
        with suppress(ValueError):
            _processes.remove(self)
        self._connection.close()


def _send(connection: socket, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(_SIZE, "little") + message)


def _receive(connection: socket) -> bytes:
    size = int.from_bytes(_exactly(connection, _SIZE), "little")
    return _exactly(connection, size)


def _exactly(connection: socket, size: int) -> bytes:
    pieces = []
    while size:
        piece = connection.recv(min(size, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


# --- requests -----------------------------------------------------------------------------------


def help_with(kernels: int, most: int) -> None:
    """Let `call` ask processes in this thread, which compiles some of so many kernels.

    most  processes that may be started for them
    """
    _here.kernels, _here.most = kernels, most


def call(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """The value of a function of a module: from an idle process, if this thread is helped, or else computed here."""
    process = _taken()
    answer = None if process is None else _asked(process, (function, arguments, keywords))
    if answer is None:
        return function(*arguments, **keywords)
    is_done, value, totals = pickle.loads(answer)
    spans.add(totals)
    if is_done:
        return cast(T, value)
    logger.debug("a process has failed, and this one tries: %s", value)
    return function(*arguments, **keywords)


@spans.span("processes/ask")
def _asked(process: _Process, request: tuple[Any, ...]) -> bytes | None:
    """The answer of a process, which is idle again; None if there is none."""
    try:
        message = pickle.dumps(request, 5)
    except Exception as error:  # a function of no module, or nodes that are nested too deeply
        _idle.append(process)
        logger.debug("a process can't be asked: %s", error)
        return None
    _times["used"] = time.monotonic()
    try:
        answer = process.ask(message)
    except Exception as error:
        _give_up(process, error)
        return None
    except BaseException:
        process.close()  # its answer would be taken for the next request's
        raise
    _idle.append(process)
    return answer


def _taken() -> _Process | None:
    """An idle process, which is now this thread's; None if there is none."""
    if _here.kernels is None or os.environ.get("TASKC_DUMP"):
        return None
    if _here.kernels >= LEAST and not _processes:
        start(_here.most)
    for _ in range(len(_idle)):
        try:
            process = _idle.popleft()
        except IndexError:
            break
        try:
            if process.is_ready():
                return process
        except Exception as error:
            _give_up(process, error)
        else:
            _idle.append(process)
    return None


def _give_up(process: _Process, error: Exception) -> None:
    _times["ended"] = time.monotonic()
    process.close()
    said = f"{type(error).__name__} {error}".strip()
    logger.warning("a process that compiles has ended (%s): its work is done here", said)


# --- their life ---------------------------------------------------------------------------------


def begin_with(ready: Callable[[], Any]) -> None:
    """Set the first function of a process: it imports what requests need, and has the same value there and here."""
    _ready[:] = [ready]


def start(most: int) -> None:
    """Start processes, unless there are some; they are ready half a second later.

    most  of them
    """
    if most < 1 or not may_wait() or not _may_start():
        return
    with _turn.taken():
        if _processes:
            return
        _reap()
        try:
            _start(min(most, _MOST))
        except (
            OSError,
            RuntimeError,
        ) as error:  # a limit of the system; the end of the interpreter
            _times["ended"] = time.monotonic()
            logger.debug("no process can be started: %s", error)


def _may_start() -> bool:
    is_python = Path(sys.executable or "").name.startswith(("python", "pypy"))
    return (
        bool(_ready)
        and hasattr(os, "fork")
        and is_python  # and no program that embeds it
        and not os.environ.get("TASKC_DUMP")
        and time.monotonic() > _times["ended"] + _AGAIN
    )


def _start(count: int) -> None:
    import socket
    import subprocess

    pairs = [socket.socketpair() for _ in range(count * _CONNECTIONS)]
    numbers = [there.fileno() for _, there in pairs]
    processes = [_Process(here) for here, _ in pairs]
    try:
        first = subprocess.Popen(
            [sys.executable, "-c", _SERVE, ",".join(map(str, numbers)), *map(str, sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ENVIRONMENT,
            pass_fds=numbers,
            start_new_session=True,  # Ctrl-C is for this process
        )
        _first.append(first)
        _send(pairs[0][0], pickle.dumps(_ready[0]))
    except BaseException:
        for process in processes:
            process.close()
        raise
    finally:
        for _, there in pairs:
            there.close()
    _times["used"] = time.monotonic()
    _processes.extend(processes)
    _idle.extend(processes)
    threading.Thread(target=_end_idle, name="taskc idle processes", daemon=True).start()


def _end_idle() -> None:
    """End the processes once none was asked for a while."""
    while _processes:
        time.sleep(_LOOK)
        if len(_idle) == len(_processes) and time.monotonic() > _times["used"] + _IDLE:
            stop()


def stop() -> None:
    """End all processes, and wait until they have ended."""
    with _turn.taken():
        while _idle:
            _idle.popleft().close()
        for process in [*_processes]:
            process.end()  # the thread that waits for it closes it
        _reap()


def _reap() -> None:
    """Wait for the end of the first process, whose connection is closed."""
    while _first:
        first = _first.pop()
        try:
            first.wait(1)
        except Exception:
            first.kill()
            first.wait()


def _forked() -> None:
    """The child of a fork has no processes: its copies of the connections would keep them alive."""
    for process in [*_processes]:
        process.close()
    _idle.clear()
    for first in _first:
        first.returncode = 0  # nothing to wait for
    _first.clear()


atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


# --- there --------------------------------------------------------------------------------------


def serve(numbers: str) -> None:
    """Answer requests until a connection is closed.

    numbers  descriptors of connections, one for each process and then the next ones: this is the first process, and
             forks the others
    """
    import socket

    connections = [socket.socket(fileno=int(number)) for number in numbers.split(",")]
    try:
        ready: Callable[[], Any] = pickle.loads(_receive(connections[0]))
    except (EOFError, OSError):
        return
    value = ready()
    gc.freeze()  # a full collection takes 20 ms, and copies pages that forks share
    seconds = time.process_time()
    own, children = _shared_out(connections)
    requests: SimpleQueue[tuple[socket.socket, bytes]] = SimpleQueue()
    for connection in own:
        threading.Thread(target=_read, args=(connection, requests, children), daemon=True).start()
        is_first = connection is connections[0]
        started = {"processes/start": spans.Total(seconds, 1)} if is_first else {}
        _send(connection, pickle.dumps((value, started)))
    while True:
        connection, request = requests.get()
        _send(connection, _answer(request))


def _shared_out(connections: Sequence[socket]) -> tuple[Sequence[socket], list[int]]:
    """The connections of this process, and the processes that it has forked for the others."""
    count = len(connections) // _CONNECTIONS
    children: list[int] = []
    own = 0
    for other in range(1, count):
        child = os.fork()
        if not child:
            own, children = other, []
            break
        children.append(child)
    for number, connection in enumerate(connections):
        if number % count != own:
            connection.close()
    return connections[own::count], children


def _read(
    own: socket, requests: SimpleQueue[tuple[socket, bytes]], children: Sequence[int]
) -> None:
    """Read requests in a thread, which notices the end of the connection whatever the other thread does."""
    import signal

    try:
        while True:
            requests.put((own, _receive(own)))
    except BaseException:
        for child in children:
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        os._exit(0)


def _answer(request: bytes) -> bytes:
    with spans.recorded() as totals:
        try:
            with spans.span("processes/requests"):
                function, arguments, keywords = pickle.loads(request)
                value = function(*arguments, **keywords)
            return pickle.dumps(
                (True, value, totals), 5
            )  # fails for nodes that are nested too deeply
        except Exception as error:
            return pickle.dumps((False, repr(error), totals), 5)
