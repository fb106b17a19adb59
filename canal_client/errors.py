"""Defines the errors of the client. Each message says what happened, where, and what to do."""

from __future__ import annotations


class CanalError(Exception):
    """The base class of all errors of the client. `code` is the error's name for programs."""

    code = "CANAL"


class CanalConnectionError(CanalError):
    """Raised if no server that has the destination was reached, or if the connection ended. When the client connects again, the server
    repeats the batches that were not acked.
    """

    code = "CONNECTION"


class CanalAuthenticationError(CanalError):
    """Raised if the server does not accept this user and password."""

    code = "AUTHENTICATION"


class CanalServerError(CanalError):
    """Raised if the server refused a request. `number` is the error code. As in Canal, it is 401 if the request lacks the destination or
    the client id, 402 if the request lacks a batch id, and otherwise 400. `said` is the server's message.
    """

    code = "REFUSED"

    def __init__(self, number: int, said: str) -> None:
        super().__init__(f"the server refused the request ({number}): {said}")
        self.number, self.said = number, said


class CanalProtocolError(CanalError):
    """Raised if the bytes do not follow Canal's protocol: another kind of server listens at the address, or the server requires TLS and the
    client does not use it.
    """

    code = "PROTOCOL"


class BatchGoneError(CanalError):
    """Raised if a batch can no longer be acked or rolled back, because the connection that returned it has ended, or because another client
    with the same id reads. The server sends the batch again. Only an ack of the repeated batch counts.
    """

    code = "BATCH_GONE"
