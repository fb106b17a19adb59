"""Finds free ports on 127.0.0.1, and checks whether a port is free."""

import secrets
import socket

from sluice.console.toolchain.errors import PortTakenError

LOOPBACK = "127.0.0.1"
# The ports from which `free_port` chooses. They are below 32768, because Linux uses the ports from 32768 on for outgoing connections.
PORT_MIN, PORT_MAX = 15_000, 32_000
ATTEMPTS = 50


def free_port(ports: int = 1) -> int:
    """Finds `ports` consecutive ports on which no program listens, and returns the first of them.

    The ports are below those that Linux uses for outgoing connections, because an outgoing connection could take a higher port before the
    caller's server starts. If ATTEMPTS random choices find no such ports, returns a free port that the kernel chooses, without a check of
    the ports that follow.
    """
    for _ in range(ATTEMPTS):
        first = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN - ports)
        if all(is_free(port) for port in range(first, first + ports)):
            return first
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return min(port, 65536 - ports)


def is_free(port: int) -> bool:
    """Returns whether a server could listen on the port. The port also counts as free if an old connection on it is still closing."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def listens(port: int) -> bool:
    """Returns whether a program accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def require_free(port: int, purpose: str) -> None:
    """Raises PortTakenError if another program listens on the port. The message contains `purpose`, which says what needs the port."""
    if not is_free(port):
        raise PortTakenError(
            f"Port {port}, wanted for {purpose}, is taken by another program;"
            f" stop that program (`ss -ltnp 'sport = :{port}'` shows it) or choose another port."
        )
