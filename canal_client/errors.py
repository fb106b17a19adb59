"""What goes wrong between a client and its server. Each error says what happened, where, and what to do."""

from __future__ import annotations


class CanalError(Exception):
    """Any failure of the client. `code`: its name for a program."""

    code = "CANAL"


class CanalConnectionError(CanalError):
    """No server was reached, or the connection ended. What was not acked comes again after the next connection."""

    code = "CONNECTION"


class CanalAuthenticationError(CanalError):
    """The server does not take this user and password."""

    code = "AUTHENTICATION"


class CanalServerError(CanalError):
    """The server refused. `number`: 400, 401 or 402, as Canal counts; `said`: its sentence."""

    code = "REFUSED"

    def __init__(self, number: int, said: str) -> None:
        super().__init__(f"the server refused ({number}): {said}")
        self.number, self.said = number, said


class CanalProtocolError(CanalError):
    """Bytes that are not of Canal's protocol: another server listens there, or it speaks TLS and this client does not."""

    code = "PROTOCOL"


class BatchGoneError(CanalError):
    """The connection that gave the batch has ended: the batch comes again, and that one can be acked."""

    code = "BATCH_GONE"
