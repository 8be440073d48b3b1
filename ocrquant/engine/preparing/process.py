"""One worker process as its parent sees it.

Knows pipes and exit codes; knows nothing of pages.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import IO, Any, cast

from ocrquant.engine.preparing.messages import receive, send
from ocrquant.engine.preparing.worker import READY
from ocrquant.errors import EngineError

__all__ = ["WorkerProcess"]

# As `multiprocessing` starts a process: with the parent's search path, whatever made it.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from ocrquant.engine.preparing.worker import main; main()"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


GRACE_SECONDS = 2.0
"""A worker whose pipe is closed ends by itself; after so long it is helped."""


class WorkerProcess:
    """Starts a worker.

    It ends by itself when this process does, in whatever way, because its pipe closes then.

    Raises:
        EngineError: There is no room for a process.
    """

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **_ONE_THREAD},
                # Ctrl-C goes to the terminal's whole group; the parent alone is to answer it.
                process_group=0,
            )
        except OSError as error:
            raise _no_start(error) from error

    @property
    def id(self) -> int:
        """Its number."""
        return self._process.pid

    def greet(self, encoder: object) -> None:
        """Waits until it runs and gives it the encoder.

        Raises:
            EngineError: It cannot start.
        """
        try:
            answer = self.receive()
        except EOFError:
            answer = self.end()
        if answer != READY:
            raise _no_start(answer)
        self.send(encoder)

    def send(self, message: object) -> None:
        """Raises OSError if it has died."""
        send(cast(Any, self._process.stdin), message)

    def receive(self) -> Any:
        """Raises EOFError if it has died."""
        return receive(cast(Any, self._process.stdout))

    def kill(self) -> None:
        """Ends it at once; whoever waits for its answer gets an EOFError."""
        self._process.kill()

    def end(self) -> str:
        """Makes sure that it is gone; how it went, in words."""
        stdin, stdout = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        with suppress(OSError):
            stdin.close()
        try:
            code = self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        stdout.close()
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _no_start(given: object) -> EngineError:
    fix = "see its message above, or prepare pages in the engine's thread (0 workers)"
    return EngineError("worker process", expected="to start", given=given, fix=fix)
