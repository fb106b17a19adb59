"""Ends a command with its child processes. Used for commands that print secrets, for `archive_fetch`, and for git."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a command that leads a process group, and its child processes, which could otherwise wait forever. Then closes the command's
    pipes.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
