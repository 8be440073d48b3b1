"""A process that prepares pages until its pipe closes.

Takes an encoder, then tasks, from standard input, and writes to standard output. It is an interpreter of its
own and not a copy of its parent: it never runs the parent's main module again, so that scripts without a
guard and notebooks work, and it loads no torch.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Any

from ocrquant.engine.preparing.messages import receive, send
from ocrquant.engine.preparing.task import prepare

__all__ = ["READY", "main"]

READY = "ready"
"""The first message of a worker."""


def main() -> None:
    """Serves one parent and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides; it may go on with other work.
    # Only messages go to the parent: whatever a library prints goes where errors go.
    answers = io.FileIO(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(io.FileIO(0, "rb", closefd=False), tasks), daemon=True).start()
    send(answers, READY)
    encoder = tasks.get()
    while True:
        ticket, task = tasks.get()
        try:
            send(answers, (ticket, prepare(encoder, task)))
        except BrokenPipeError:
            os._exit(0)


def _listen(pipe: io.FileIO, tasks: SimpleQueue[Any]) -> None:
    """Takes messages as they come, so that the parent never waits while a page is being prepared."""
    try:
        while True:
            tasks.put(receive(pipe))
    except EOFError:
        # The parent is gone or wants no more, also of the page in progress.
        os._exit(0)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
