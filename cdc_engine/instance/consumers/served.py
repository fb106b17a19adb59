"""Serves a destination or a group through the protocol server: its consumers, and their deliveries as entries. Started and ended by
`engine` and by `group.engine`.
"""

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
    """The consumers of a destination (`Consumers`) or of a group."""

    def broker_of(self, client_id: int) -> str: ...
    def subscribe(self, client_id: int, client_filter: str = "") -> SessionConsumer: ...
    def unsubscribe(self, client_id: int) -> None: ...
    def service(self, client_id: int) -> SessionConsumer: ...


class ServedEntries(Protocol):
    """Converts deliveries of consumers to entries."""

    def messages(self, content: Any, /) -> bytes: ...


class ServedConsumers:
    """Implements `session.Served`. `consumers`: raises NotStartedError if the destination is not read in this process."""

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
        """Returns the consumers. Raises ConfigurationError if the number is a broker's: changes that a client acks under it would not reach
        the broker.
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
    """Returns the address to listen on. Raises ConfigurationError if anyone on the network could connect, or the password's hash is
    invalid.
    """
    access = Access(user=config.user, password_hash=config.password_hash)
    _ = access.hash_now()
    if config.user and not access.password_hash:
        raise ConfigurationError("canal_server.user without a password: set password_hash to the location of its hash")
    if config.host not in LOOPBACK and not access.password_hash:
        raise ConfigurationError(
            f"canal_server.host {config.host} is not a loopback address: set user and password_hash"
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
    """Listens for the clients of one destination. `trouble`: why it does not listen although it should; the destination continues to
    run.
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
        """Listens, or sets `trouble` to the reason why it cannot. Raises ConfigurationError if conf/ is invalid."""
        served = ServedConsumers(self._consumers, self._entries(), counts_entries=self._config.fetch_unit == "entries")
        with self._lock:
            if self._end is not None or self._ended:
                return
            try:
                self._end = listen(address_of(self._config), self._destination, served)
                self.trouble = ""
            except CannotListenError as error:
                self.trouble = f"{error}, or free this port: Sluice tries again each second"

    def again(self) -> None:
        """Tries to listen again if there is trouble. Raises nothing: an invalid setting of conf/ or the environment becomes the trouble."""
        if not self.trouble:
            return
        try:
            self.begin()
        except ConfigurationError as error:
            self.trouble = f"{error}: Sluice tries again each second"

    def end(self) -> None:
        """Stops listening. A second call has no effect; otherwise it would remove another engine's listener."""
        with self._lock:
            end, self._end, self._ended, self.trouble = self._end, None, True, ""
        if end is not None:
            end()


def entry_maker(display: Display, forms: Forms) -> EntryMaker:
    """Returns the maker of a destination's entries, with the settings for its rows. Raises ConfigurationError for an invalid time zone."""
    return EntryMaker(display, described, forms.policies, forms.kept, forms.keys)


def serving_of(config: DestinationConfig, consumers: Callable[[], Consumers]) -> Serving:
    """Returns the listener of a destination, with conf/'s settings for its rows. Raises ConfigurationError."""
    forms = forms_of(config)
    return Serving(
        config.canal_server, config.name, consumers, lambda: entry_maker(display_of(config.canal_server), forms)
    )
