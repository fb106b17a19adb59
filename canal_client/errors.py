"""Defines the errors of the client. Each message says what happened, where, and what to do."""

from __future__ import annotations


class CanalError(Exception):
    """The base class of all errors of the client. `code` is the error's name for programs."""

    code = "CANAL"


class CanalConnectionError(CanalError):
    """No server was reached, or the connection ended. After the next connection, the server repeats the batches that were not acked."""

    code = "CONNECTION"


class CanalAuthenticationError(CanalError):
    """The server does not accept this user and password."""

    code = "AUTHENTICATION"


class CanalServerError(CanalError):
    """The server refused a request. `number` is 400, 401 or 402, as in Canal. `said` is the server's message."""

    code = "REFUSED"

    def __init__(self, number: int, said: str) -> None:
        super().__init__(f"the server refused ({number}): {said}")
        self.number, self.said = number, said


class CanalProtocolError(CanalError):
    """The bytes do not follow Canal's protocol. Another kind of server listens at the address, or the server requires TLS and the client
    does not use it.
    """

    code = "PROTOCOL"


class BatchGoneError(CanalError):
    """The connection that returned the batch has ended. The server sends the batch again, and the client must ack that one."""

    code = "BATCH_GONE"
