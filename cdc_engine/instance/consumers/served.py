"""Serves the consumers of a destination or a group through Canal's protocol. An engine's `lifecycle` begins and ends the serving."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from sluice.cdc_engine.binlog.entries.messages import EntryMaker
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.config import CanalServerConfig, DestinationConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.forms import Forms, display_of, forms_of
from sluice.cdc_engine.instance.consumers.statements import described
from sluice.cdc_engine.server.protocol.listener import Address, CannotListenError, listen
from sluice.cdc_engine.server.protocol.session import Access, SessionConsumer
from sluice.cdc_engine.source.settings import LOOPBACK


class Clients(Protocol):
    """The methods of a destination's `Consumers` and a group's `GroupConsumers` that the protocol server calls."""

    def broker_of(self, client_id: int) -> str: ...
    def subscribe(self, client_id: int, client_filter: str = "") -> SessionConsumer: ...
    def unsubscribe(self, client_id: int) -> None: ...
    def service(self, client_id: int) -> SessionConsumer: ...


class ServedEntries(Protocol):
    """Converts the changes that a consumer gets to entries of Canal's protocol."""

    def messages(self, content: Any, /) -> bytes: ...


class ServedConsumers:
    """Gives the protocol server's sessions access to the consumers (`session.Served`). `consumers` returns the consumers, or raises
    NotStartedError if this process does not run the destination's engine. `counts_entries`: whether the fetch size in a client's get counts
    entries (`fetch_unit: entries`), not bytes.
    """

    def __init__(
        self, consumers: Callable[[], Clients], entries: ServedEntries, *, counts_entries: bool = False
    ) -> None:
        self._consumers, self._entries, self.counts_entries = consumers, entries, counts_entries

    def subscribe(self, client_id: int, client_filter: str) -> SessionConsumer:
        return self._for_clients(client_id).subscribe(client_id, client_filter)

    def unsubscribe(self, client_id: int) -> None:
        self._for_clients(client_id).unsubscribe(client_id)

    def service(self, client_id: int) -> SessionConsumer:
        return self._for_clients(client_id).service(client_id)

    def _for_clients(self, client_id: int) -> Clients:
        """Returns the consumers for a client. Raises ConfigurationError if the client's number belongs to a broker, because the broker
        would not get the changes that a client acks under this number.
        """
        consumers = self._consumers()
        if broker := consumers.broker_of(client_id):
            raise ConfigurationError(
                f"clientId:{client_id} belongs to the broker {broker} in conf/: use another number, or give "
                "the broker another client_id"
            )
        return consumers

    def messages(self, content: Any) -> bytes:
        return self._entries.messages(content)


def address_of(config: CanalServerConfig) -> Address:
    """Returns the address on which the protocol server listens. Raises ConfigurationError if conf/ names a user without a password, if
    anybody on the network could connect without a password, or if the password's hash is invalid.
    """
    access = Access(user=config.user, password_hash=config.password_hash)
    _ = access.hash_now()
    if config.user and not access.password_hash:
        raise ConfigurationError(
            "canal_server.user has no password: set password_hash to the location of the hash of a password, for example to $NAME, if the "
            "environment variable NAME has the hash"
        )
    if config.host not in LOOPBACK and not access.password_hash:
        raise ConfigurationError(
            f"canal_server.host {config.host} is not a loopback address, so clients on other hosts could connect without a password: set "
            "user and password_hash"
        )
    return Address(
        host=config.host,
        port=config.port,
        access=access,
        certificate_file=config.certificate_file,
        key_file=config.key_file,
        connections_max=config.connections_max,
    )


class Serving:
    """Listens for the Canal clients of one destination or group, if conf/ has a port for them. If listening fails, `trouble` says why, and
    the destination runs without clients.
    """

    def __init__(
        self,
        config: CanalServerConfig,
        destination: str,
        consumers: Callable[[], Clients],
        entries: Callable[[], ServedEntries] | None = None,
    ) -> None:
        self._config, self._destination, self._consumers = config, destination, consumers
        self._entries = entries or (lambda: entry_maker(display_of(config), Forms()))
        self._lock = threading.Lock()
        self._end: Callable[[], None] | None = None
        self._ended = False
        self.trouble = ""

    def begin(self) -> None:
        """Begins to listen. If that fails, sets `trouble` to the reason. Raises ConfigurationError if conf/ is invalid."""
        if not self._config.port:
            return
        served = ServedConsumers(self._consumers, self._entries(), counts_entries=self._config.fetch_unit == "entries")
        with self._lock:
            if self._end is not None or self._ended:
                return
            try:
                self._end = listen(address_of(self._config), self._destination, served)
                self.trouble = ""
            except CannotListenError as error:
                self.trouble = f"{error}. You can also free the port: Sluice tries again each second"

    def again(self) -> None:
        """Tries to listen again if `trouble` is set. Raises no error. If a setting in conf/ or in the environment is invalid, `trouble`
        says which.
        """
        if not self.trouble:
            return
        try:
            self.begin()
        except ConfigurationError as error:
            self.trouble = f"{error}: Sluice tries again each second"

    def end(self) -> None:
        """Stops listening. A second call does nothing, because another engine may listen on the port by then."""
        with self._lock:
            end, self._end, self._ended, self.trouble = self._end, None, True, ""
        if end is not None:
            end()


def entry_maker(display: Display, forms: Forms) -> EntryMaker:
    """Returns the object that makes a destination's entries, with the settings `forms` for rows. Raises ConfigurationError for an invalid
    time zone.
    """
    return EntryMaker(display, described, forms.policies, forms.kept, forms.keys)


def serving_of(config: DestinationConfig, consumers: Callable[[], Consumers]) -> Serving:
    """Returns the object that listens for the Canal clients of a destination, if conf/ has a port for them. Raises ConfigurationError if
    conf/ has an invalid rule for rows, such as a row filter that cannot be parsed.
    """
    forms = forms_of(config)
    return Serving(
        config.canal_server, config.name, consumers, lambda: entry_maker(display_of(config.canal_server), forms)
    )
