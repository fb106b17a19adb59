"""Defines the errors between a client and its server. Each message says what happened, where, and what to do."""

from __future__ import annotations


class CanalError(Exception):
    """Any failure of the client. `code`: its name for a program."""

    code = "CANAL"


class CanalConnectionError(CanalError):
    """No server was reached, or the connection ended. The server sends what was not acked again after the next connection."""

    code = "CONNECTION"


class CanalAuthenticationError(CanalError):
    """The server does not accept this user and password."""

    code = "AUTHENTICATION"


class CanalServerError(CanalError):
    """The server refused a request. `number`: 400, 401 or 402, as in Canal. `said`: the server's sentence."""

    code = "REFUSED"

    def __init__(self, number: int, said: str) -> None:
        super().__init__(f"the server refused ({number}): {said}")
        self.number, self.said = number, said


class CanalProtocolError(CanalError):
    """The bytes are not of Canal's protocol: another kind of server listens there, or it requires TLS and this client does not use it."""

    code = "PROTOCOL"


class BatchGoneError(CanalError):
    """The connection that returned the batch has ended. The server sends the batch again, and it must be acked then."""

    code = "BATCH_GONE"
