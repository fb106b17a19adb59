"""Runs a child process that ends with its parent, unless the child must outlive the parent. The database servers, Spark and `stack` use
this module.

Each child leads its own process group, so that Ctrl-C in the terminal reaches only the program that started the child. A watcher kills the
child when the parent dies, even by SIGKILL. The watcher is a shell that waits on a pipe. The kernel's parent-death signal cannot be used,
because the kernel sends this signal already when the thread that started the child ends.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from sluice.console.toolchain.ports import listens

POLL_SECONDS = 0.05
# This command starts a child that reacts to SIGINT. If a shell has started this program in the background, this program ignores SIGINT,
# and its children would ignore SIGINT too. Dagster's processes would then also ignore SIGTERM, because they handle SIGTERM like SIGINT.
LISTENS = ("/usr/bin/env", "--default-signal=INT")


class ChildProcess:
    """A running program that writes its output to a log file."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        die_with_parent: bool = True,
    ) -> None:
        """Starts the program. With `die_with_parent`, the program is killed when this process dies."""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*LISTENS, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        self._watcher = _watcher_of(self._process.pid) if die_with_parent else None

    @property
    def pid(self) -> int:
        """The program's process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the program has not ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The program's exit code. If a signal ended the program, this is the negative number of the signal. The exit code is None while
        the program runs.
        """
        return self._process.poll()

    @property
    def ended(self) -> str:
        """How the program ended, as "exit code 1" or "signal 9". This text is empty while the program runs."""
        code = self._process.poll()
        if code is None:
            return ""
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def stop(self, deadline_seconds: float = 30.0) -> None:
        """Sends SIGTERM to the program and its process group. After `deadline_seconds`, kills those of them that have not ended."""
        self._signal(signal.SIGTERM)
        end = time.monotonic() + deadline_seconds
        while time.monotonic() < end and self._group_runs():
            time.sleep(POLL_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kills the program and its process group, and waits until the program has ended."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._watcher:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None

    def stall(self) -> None:
        """Suspends the program and its process group with SIGSTOP, to simulate a host that hangs. Returns when the program is suspended.
        `kill` ends the suspended program, and `resume` continues it.
        """
        self._signal(signal.SIGSTOP)
        # Waits until the program is suspended. On a busy machine, it continues to run until its thread is scheduled and gets the signal.
        if self.running:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continues a program that `stall` has suspended."""
        self._signal(signal.SIGCONT)

    def _group_runs(self) -> bool:
        """Returns whether the program or another process of its group has not ended. Does not call `poll`, which would set `returncode`:
        `_signal` would then send nothing to the other processes.
        """
        return self._process.returncode is None and any(
            _is_in_group(each, self._process.pid) for each in psutil.process_iter()
        )

    def _signal(self, number: signal.Signals) -> None:
        # The id of an ended child stays in use until this process has waited for the child (`returncode` is then set). Until then, no other
        # process group can have this id and get the signal.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _is_in_group(process: psutil.Process, group: int) -> bool:
    """Returns whether a process belongs to a process group and has not ended."""
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


def _watcher_of(pid: int) -> "subprocess.Popen[bytes]":
    """Starts a shell that kills the process group of the child `pid` when this process dies. The standard input of the shell is a pipe
    from this process, so the input then closes.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read _; kill -KILL -{pid}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def why_no_run_can_start() -> str:
    """Returns why no run can start, or "" if runs can start. The code server and the process of a run share semaphores, so no run can start
    if Python cannot create a semaphore.
    """
    try:
        multiprocessing.Lock()
    except OSError as error:
        fix = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
        return f"no run can start: semaphores cannot be created in /dev/shm ({error.strerror}); as root, run `{fix}`"
    return ""


def last_lines(log: Path, count: int = 5) -> str:
    """Returns the last `count` lines of a log, joined to one line, for an error message. A usage text at the end of the log is left out. If
    there is no log, the result says so.
    """
    if not log.exists():
        return "no log was written"
    lines = _without_usage(log.read_text(encoding="utf-8", errors="replace").splitlines())
    return " | ".join(line.strip() for line in lines[-count:] if line.strip())


def _without_usage(lines: list[str]) -> list[str]:
    """Removes a usage text from the end of the lines. spark-submit prints such a text, with all its options, after the line with the
    error.
    """
    end = len(lines)
    while end and (
        not lines[end - 1].strip()
        or lines[end - 1][0].isspace()
        or lines[end - 1].startswith("Usage:")
        or lines[end - 1].rstrip().endswith(":")
    ):
        end -= 1
    return lines[:end] if end and any(line.startswith("Usage:") for line in lines[end:]) else lines


def wait_until_listening(port: int, processes: Sequence[ChildProcess], deadline_seconds: float) -> bool:
    """Waits until a program listens on a port of 127.0.0.1. Returns False if none does so by the deadline, or if one of the `processes` has
    ended.
    """
    end = time.monotonic() + deadline_seconds
    while time.monotonic() < end and all(process.running for process in processes):
        if listens(port):
            return True
        time.sleep(POLL_SECONDS)
    return False
