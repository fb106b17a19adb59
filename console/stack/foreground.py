"""Starts the parts of Sluice, keeps them running, and ends them on request, for `sluice up --foreground`.

--foreground is for service managers. The process notifies systemd (Type=notify) when all parts answer, and shuts down cleanly on SIGTERM.
If a part fails too often, the process names the part and ends with exit code 1. When the process ends, even by SIGKILL, all parts end too.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.file_lock import FileLock
from sluice.console.stack import signals
from sluice.console.stack.stack import STOP_ORDER, SUPERVISOR, Stack
from sluice.console.stack.supervisor import FOREGROUND, POLL_SECONDS
from sluice.console.toolchain.errors import SetupError


def keep_up(stack: Stack, wanted: Callable[[], bool] = lambda: True) -> None:
    """Starts the parts, and keeps them running until SIGTERM or Ctrl-C, or until `wanted` returns False. Returns when all parts have ended.
    Raises SetupError if Sluice runs already, if a part fails too often, or if a process still runs after SIGKILL.
    """
    running = {name: record.pid for name, record in stack.file.running().items() if name in {*STOP_ORDER, SUPERVISOR}}
    if running:
        who = ", ".join(f"{name} (pid {pid})" for name, pid in running.items())
        raise SetupError(
            f"Sluice is already running ({who}); stop it with `sluice down`, then start `sluice up --foreground` again."
        )
    with signals.heard():
        try:
            _keep(stack, wanted)
            stack.say("Dagster's ticks have stopped, so the engines and Spark are not needed; ending all processes")
        except KeyboardInterrupt:
            stack.say("ending all processes")
        finally:
            notify("STOPPING=1")
            _end(stack)


def keep_up_process_of_engines(stack: Stack, data_dir: Path) -> None:
    """Keeps the engines and Spark running for a user's own Dagster, as long as Dagster's ticks arrive. Returns at once if another process
    does this already.
    """
    from sluice.console.toolchain.cache import locked, open_cache  # noqa: PLC0415
    from sluice.console.toolchain.kernels import compile_kernels  # noqa: PLC0415
    from sluice.orchestration.component.engine_process import LOCK_FILE, is_wanted  # noqa: PLC0415  imports Dagster's RPC

    lock = FileLock(data_dir / LOCK_FILE)
    if not lock.try_acquire():
        stack.say("another process already keeps the engines and Spark running")
        return
    try:
        stack.require_startable()
        with locked(cache := open_cache(), stack.say):
            compile_kernels(cache, stack.say)
        keep_up(stack, functools.partial(is_wanted, data_dir))
    finally:
        lock.release()


def _keep(stack: Stack, wanted: Callable[[], bool]) -> None:
    supervisor = stack.supervisor(FOREGROUND)
    stack.file.add(SUPERVISOR, os.getpid())
    announced = False
    while wanted():
        supervisor.tick()
        if supervisor.is_ready(tasks=False) and not announced:
            announced = True
            stack.say(f"all parts answer; {stack.shown_at}   logs: {stack.logs}")
            notify("READY=1")
        time.sleep(POLL_SECONDS)


def _end(stack: Stack) -> None:
    """Ends the parts in order, each with a deadline. A second signal kills all of them at once."""
    try:
        left = stack.down()
    except KeyboardInterrupt:
        left = stack.kill()
    with signals.unheard():
        if left:
            raise SetupError(
                f"These processes still run after SIGKILL: {', '.join(map(str, left))}; examine each process with `ps -fp PID`."
            )
        stack.say("stopped; 0 processes are left")


def notify(state: str) -> None:
    """Sends a state such as READY=1 to systemd (sd_notify). Does nothing if systemd has not set $NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.connect("\0" + address[1:] if address.startswith("@") else address)
        teller.send(state.encode())
