"""A destination as the protocol server serves it: its consumers, and their deliveries as entries. Started and ended by `engine`."""

from __future__ import annotations

import os
from collections.abc import Callable

from cdc_engine.binlog.entries.messages import EntryMaker
from cdc_engine.config import CanalServerConfig
from cdc_engine.errors import ConfigurationError
from cdc_engine.instance.consumers.consumers import Consumers, Service
from cdc_engine.instance.consumers.feed import Chosen
from cdc_engine.instance.consumers.statements import described
from cdc_engine.server.protocol.listener import Address, listen
from cdc_engine.server.protocol.session import Access
from cdc_engine.server.protocol.token import is_hash

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServedConsumers:
    """Implements `session.Served`. `consumers` raises NotStartedError where the destination is not read here."""

    def __init__(self, consumers: Callable[[], Consumers], time_zone: str) -> None:
        self._consumers = consumers
        self._entries = EntryMaker(time_zone, described)

    def subscribe(self, client_id: int, client_filter: str) -> Service:
        return self._consumers().subscribe(client_id, client_filter)

    def unsubscribe(self, client_id: int) -> None:
        self._consumers().unsubscribe(client_id)

    def service(self, client_id: int) -> Service:
        return self._consumers().service(client_id)

    def messages(self, content: tuple[Chosen, ...]) -> bytes:
        return self._entries.messages(content)


def address_of(config: CanalServerConfig) -> Address:
    """Raises ConfigurationError where anyone on the network could come in, or the password's hash is none."""
    password_hash = ""
    if config.password_hash_env:
        password_hash = os.environ.get(config.password_hash_env, "").removeprefix("*")
        if not is_hash(password_hash):
            raise ConfigurationError(
                f"the environment variable {config.password_hash_env} has no hash of a password: hex(SHA1(SHA1(password))), 40 characters"
            )
    if config.user and not password_hash:
        raise ConfigurationError("canal_server.user without a password: name its hash in password_hash_env")
    if config.host not in LOOPBACK and not password_hash:
        raise ConfigurationError(f"canal_server.host {config.host} is not the loopback: it wants a user and a password")
    return Address(
        host=config.host,
        port=config.port,
        access=Access(user=config.user, password_hash=password_hash),
        certificate_file=config.certificate_file,
        key_file=config.key_file,
        connections_max=config.connections_max,
    )


def serve(config: CanalServerConfig, destination: str, consumers: Callable[[], Consumers]) -> Callable[[], None]:
    """Listens for the destination's clients; the answer ends it. Raises ConfigurationError."""
    return listen(address_of(config), destination, ServedConsumers(consumers, config.time_zone))
