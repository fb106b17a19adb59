"""`sluice up --foreground`: one process that starts the stack, keeps its parts alive, and ends them on request.

For use under a supervisor of processes: it notifies systemd (Type=notify) when everything answers, ends in order on SIGTERM, and ends
with exit code 1 if it gave up a part, which it names. Its children are on a leash, so that SIGKILL leaves nothing either.
"""

from __future__ import annotations

import os
import socket
import time

from sluice.console.stack import signals
from sluice.console.stack.stack import STOP_ORDER, SUPERVISOR, Stack
from sluice.console.stack.supervisor import FOREGROUND, POLL_SECONDS
from sluice.console.toolchain.errors import SetupError


def keep_up(stack: Stack) -> None:
    """Returns after SIGTERM or Ctrl-C, when everything has ended. Raises SetupError if a part was given up."""
    running = {name: record.pid for name, record in stack.file.running().items() if name in {*STOP_ORDER, SUPERVISOR}}
    if running:
        who = ", ".join(f"{name} (pid {pid})" for name, pid in running.items())
        raise SetupError(
            f"Already running: {who}; stop it with `sluice down`, then start `sluice up --foreground` again."
        )
    with signals.heard():
        try:
            _keep(stack)
        except KeyboardInterrupt:
            stack.say("ending everything")
        finally:
            notify("STOPPING=1")
            _end(stack)


def _keep(stack: Stack) -> None:
    supervisor = stack.supervisor(FOREGROUND)
    stack.file.add(SUPERVISOR, os.getpid())
    announced = False
    while True:
        supervisor.tick()
        if supervisor.is_ready() and not announced:
            announced = True
            stack.say(f"everything answers; Dagster's UI: {stack.url}   logs: {stack.logs}")
            notify("READY=1")
        time.sleep(POLL_SECONDS)


def _end(stack: Stack) -> None:
    """Ends the parts in order, each with its deadline; a second signal ends all of them at once."""
    try:
        left = stack.down()
    except KeyboardInterrupt:
        left = stack.kill()
    with signals.unheard():
        if left:
            raise SetupError(f"These processes outlived SIGKILL: {', '.join(map(str, left))}; see `ps -fp` for each.")
        stack.say("stopped; 0 processes are left")


def notify(state: str) -> None:
    """Reports a state to systemd (sd_notify); does nothing without $NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.connect("\0" + address[1:] if address.startswith("@") else address)
        teller.send(state.encode())
