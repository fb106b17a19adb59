"""Answers the requests of one client of Canal's protocol: converts each packet to an answer. `listener` reads and writes the socket.

A session begins with the handshake and the authentication. Then subscriptions, gets, acks and rollbacks may follow in any order. The answer
to an invalid request is an error number and a message. After a failed authentication, or after bytes that are not a packet, the connection
ends.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from sluice.cdc_engine.environment import described, filled
from sluice.cdc_engine.errors import (
    ConfigurationError,
    NotSubscribedError,
    SluiceError,
    UnknownDestinationError,
    code_and_text,
)
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX
from sluice.cdc_engine.server.protocol import packets
from sluice.cdc_engine.server.protocol.packets import Packet, PacketError, PacketType
from sluice.cdc_engine.server.protocol.token import is_hash, knows_password
from sluice.cdc_engine.server.protocol.traffic import traffic_of

log = structlog.get_logger()
SETTING = "canal_server.password_hash"
SEED_BYTES = 8
AUTHENTICATION, PACKET, CLIENT, BATCH = 400, 400, 401, 402
# The error number if too many clients are connected. Canal has no such number, but its clients show the message of any error.
FULL = 503
BYTES_A_UNIT = 1024  # The unit of a fetch size, as in Canal's batch mode MEMSIZE (memunit).
# An answer has at most this many bytes of row events, even if the client requests more. During a get, the entries made from these row
# events need about ten times as much memory.
FETCH_BYTES_MAX = 4 << 20
WAIT_SECONDS_MAX = 3600.0  # The longest wait of a get without a time-out.
CLIENT_ID_MAX = (1 << 15) - 1


class SessionConsumer(Protocol):
    """The methods of a consumer's service (`server.consumer.ConsumerService`) that a session calls. The session sets `undelivered` to the
    reason why a delivery cannot be encoded, for `sluice status`.
    """

    undelivered: str

    def get(
        self, bytes_max: int, timeout_seconds: float = 0.0, *, entries_max: int = BATCH_EVENTS_MAX
    ) -> tuple[int, Any]: ...
    def ack(self, batch_id: int) -> None: ...
    def rollback(self, batch_id: int | None = None) -> None: ...
    def stop_waiting(self) -> None: ...


class Served(Protocol):
    """The methods of a destination that a session calls. Their errors are SluiceErrors. A client sends a fetch size with a get. The fetch
    size counts entries if `counts_entries` is True, otherwise units of BYTES_A_UNIT bytes.
    """

    @property
    def counts_entries(self) -> bool: ...
    def subscribe(self, client_id: int, client_filter: str) -> SessionConsumer: ...
    def unsubscribe(self, client_id: int) -> None: ...
    def service(self, client_id: int) -> SessionConsumer: ...
    def messages(self, content: Any) -> bytes:
        """Encodes a delivery as the repeated field 2 of a Messages packet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """The user and password that clients need. If `user` is empty, any user may connect. If `password_hash` is empty, no password is
    needed.

    `password_hash` is the location of the hash hex(SHA1(SHA1(password))), for example `$NAME`. The hash is read at each login.
    """

    user: str = ""
    password_hash: str = ""

    def hash_now(self) -> str:
        """Returns the hash of the password, or "" if no password is needed. Raises SecretUnavailableError if the hash cannot be read, and
        ConfigurationError if the text at its location is not a hash.
        """
        found = filled(self.password_hash, SETTING).removeprefix("*")
        if self.password_hash and not is_hash(found):
            raise ConfigurationError(
                f"{SETTING}: {described(self.password_hash)} has no hash of a password; store hex(SHA1(SHA1(password))), 40 characters"
            )
        return found


@dataclasses.dataclass(frozen=True)
class ClientAnswer:
    """An answer to a client. The bytes in `parts` are written in order. If `closes` is True, the connection ends after the answer. `error`
    is the error number, or 0. `empty` is True if the answer is to a get that found no changes.
    """

    parts: tuple[bytes, ...] = ()
    closes: bool = False
    error: int = 0
    empty: bool = False


def refused(number: int, said: str, *, closes: bool = False) -> ClientAnswer:
    return ClientAnswer((packets.refusal(number, said),), closes, number)


class ClientSession:
    """The session of one client. `served` returns a destination by its name, or raises UnknownDestinationError. `admit` is called when the
    client has authenticated. `admit` returns the reason if the client is refused, otherwise "".
    """

    def __init__(self, access: Access, served: Callable[[str], Served], admit: Callable[[], str] = lambda: "") -> None:
        self._access, self._served, self._admit = access, served, admit
        self.seed = secrets.token_bytes(SEED_BYTES)
        self.authenticated = False
        self.read_seconds = self.write_seconds = 0.0  # The time-outs that the client requested, or 0 for none.
        self._answers: dict[PacketType, Callable[[Packet], ClientAnswer]] = {
            PacketType.SUBSCRIPTION: self._subscribe,
            PacketType.UNSUBSCRIPTION: self._unsubscribe,
            PacketType.GET: self._get,
            PacketType.CLIENTACK: self._ack,
            PacketType.CLIENTROLLBACK: self._rollback,
            PacketType.HEARTBEAT: lambda _: ClientAnswer(),
        }

    def greeting(self) -> bytes:
        return packets.handshake(self.seed)

    def answered(self, frame: bytes) -> ClientAnswer:
        """Returns the answer to a frame. Raises nothing."""
        try:
            packet = packets.parsed(frame)
        except PacketError as error:
            return refused(PACKET, str(error), closes=True)
        if not self.authenticated:
            return self._safely(self._authenticate, packet)
        begun = time.perf_counter()
        answer = self._safely(self._answered, packet)
        self._note(packet, answer, time.perf_counter() - begun)
        return answer

    # Refusals in this class have Canal's messages, mistakes included, because programs may compare them (docs/canal.md). Sluice has its own
    # message only where Canal has none.
    def _safely(self, act: Callable[[Packet], ClientAnswer], packet: Packet) -> ClientAnswer:
        try:
            return act(packet)
        except PacketError as error:
            return refused(PACKET, str(error), closes=True)
        except SluiceError as error:
            return refused(PACKET, f"something goes wrong with reason: {error}")
        except Exception as error:  # A defect of Sluice. The client gets only the type of the error.
            return refused(
                PACKET, f"internal error of the server ({type(error).__name__}): report this defect", closes=True
            )

    def _note(self, packet: Packet, answer: ClientAnswer, seconds: float) -> None:
        """Counts the packet and its answer for the destination that the packet names. Counts nothing if the listener does not serve this
        destination.
        """
        try:
            destination = packet.text(1)
            self._served(destination)
        except SluiceError:
            return
        sent = sum(map(len, answer.parts))
        kind = _kind(packet) if packet.kind in set(PacketType) else "OTHER"
        traffic_of(destination).note(kind, seconds, sent, answer.error, empty=answer.empty)

    def _knows_password(self, token: bytes) -> bool:
        """Returns whether the client's token proves that the client knows the password. If Sluice cannot read the hash of the password,
        logs the reason, which the client must not see, and returns False.
        """
        try:
            return knows_password(token, self.seed, self._access.hash_now())
        except ConfigurationError as error:
            log.warning("client_password_not_checked", reason=str(error))
            return False

    def _authenticate(self, packet: Packet) -> ClientAnswer:
        """Authenticates the client with its first packet. If the packet also names a destination and a client id, subscribes this client to
        the destination.
        """
        user = packet.text(1)
        wanted = self._access.user
        known = not wanted or secrets.compare_digest(user.encode(), wanted.encode())
        if packet.kind != PacketType.CLIENTAUTHENTICATION or not (known and self._knows_password(packet.raw(2))):
            return refused(AUTHENTICATION, f"auth failed for user:{user[:64]}", closes=True)
        if why_not := self._admit():
            return refused(FULL, why_not, closes=True)
        self.read_seconds, self.write_seconds = packet.number(3) / 1000, packet.number(4) / 1000
        if packet.text(5) and packet.text(6):
            self._served(packet.text(5)).subscribe(_client_id(packet.text(6)), packet.text(7))
        self.authenticated = True
        return ClientAnswer((packets.ack(),))

    def _answered(self, packet: Packet) -> ClientAnswer:
        if packet.kind not in self._answers:
            return refused(PACKET, f"packet type: {_kind(packet)} is NOT supported!")
        return self._answers[PacketType(packet.kind)](packet)

    def _subscribe(self, packet: Packet) -> ClientAnswer:
        if (missing := _missing(packet, "Sub")) is not None:
            return missing
        self._served(packet.text(1)).subscribe(_client_id(packet.text(2)), packet.text(7))
        return ClientAnswer((packets.ack(),))

    def _unsubscribe(self, packet: Packet) -> ClientAnswer:
        if (missing := _missing(packet, "Unsub")) is not None:
            return missing
        self._served(packet.text(1)).unsubscribe(_client_id(packet.text(2)))
        return ClientAnswer((packets.ack(),))

    def _get(self, packet: Packet) -> ClientAnswer:
        if (missing := _missing(packet, "Get")) is not None:
            return missing
        served = self._served(packet.text(1))
        size, timeout = max(1, packet.number(3)), _timeout(packet)
        consumer = served.service(_client_id(packet.text(2)))
        if served.counts_entries:
            batch_id, content = consumer.get(FETCH_BYTES_MAX, timeout, entries_max=min(size, BATCH_EVENTS_MAX))
        else:
            batch_id, content = consumer.get(min(FETCH_BYTES_MAX, size * BYTES_A_UNIT), timeout)
        if content is None:
            return ClientAnswer((packets.no_messages(),), empty=True)
        try:
            found = served.messages(content)
        except Exception as error:
            # Rolls back, so that the client does not miss these changes. The next get hands them out again, and fails in the same way.
            consumer.rollback()
            consumer.undelivered = code_and_text(error)[1]
            raise
        consumer.undelivered = ""
        return ClientAnswer((packets.messages_head(batch_id, len(found)), found))

    def _ack(self, packet: Packet) -> ClientAnswer:
        """Acks a batch. Sends nothing after success, as Canal does. After an error, the client reads the refusal as the answer to its next
        request.
        """
        if (missing := _missing(packet, "Ack")) is not None:
            return missing
        batch_id = packet.number(3)
        if batch_id == 0:
            return refused(BATCH, f"batchId should assign value. Ack: {packet.text(1)[:64]}")
        if batch_id != -1:
            self._served(packet.text(1)).service(_client_id(packet.text(2))).ack(batch_id)
        return ClientAnswer()

    def _rollback(self, packet: Packet) -> ClientAnswer:
        """Rolls back all batches that wait for an ack. If the packet names a batch other than 0, this batch must be the first of them.
        Sends nothing after success, as Canal does. Does nothing if the client is not subscribed, because such a client has no batches.
        """
        if (missing := _missing(packet, "Rollback")) is not None:
            return missing
        try:
            consumer = self._served(packet.text(1)).service(_client_id(packet.text(2)))
        except NotSubscribedError:
            return ClientAnswer()
        consumer.rollback(packet.number(3) or None)
        return ClientAnswer()


def _missing(packet: Packet, what: str) -> ClientAnswer | None:
    if packet.text(1) and packet.text(2):
        return None
    said = f"destination or clientId is null. {what}: {packet.text(1)[:64]} {packet.text(2)[:64]}"
    return refused(CLIENT, said.strip())


def _kind(packet: Packet) -> str:
    return PacketType(packet.kind).name if packet.kind in set(PacketType) else str(packet.kind)


def _client_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > CLIENT_ID_MAX:
        raise UnknownDestinationError(f"the client id {text[:64]!r} is not a number up to {CLIENT_ID_MAX}")
    return int(text)


def _timeout(packet: Packet) -> float:
    """Returns the time-out of a get in seconds. In the packet, a negative value means not to wait, and 0 or no value means
    WAIT_SECONDS_MAX. A unit that is not known means milliseconds, as in Canal: some clients send -1 if the program names no unit.
    """
    given, unit = packet.number(4), packet.number(5)
    if given < 0:
        return 0.0
    known = 0 <= unit < len(packets.UNIT_SECONDS)
    seconds = given * packets.UNIT_SECONDS[unit if known else packets.MILLISECONDS]
    return min(seconds, WAIT_SECONDS_MAX) if given else WAIT_SECONDS_MAX
