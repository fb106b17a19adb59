"""Serves and sends the changes of a group: converts them to entries for clients and messages for brokers, with the settings of the member
from which each change comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.brokers.publisher import Message
from sluice.cdc_engine.config import GroupConfig
from sluice.cdc_engine.config.brokers import BrokerConfig
from sluice.cdc_engine.instance.consumers.forms import Forms, display_of
from sluice.cdc_engine.instance.consumers.group.consumers import GroupConsumers, Runs
from sluice.cdc_engine.instance.consumers.group.group_stream import Run
from sluice.cdc_engine.instance.consumers.sending import Sending, message_maker
from sluice.cdc_engine.instance.consumers.served import Serving, address_of, entry_maker

MakerT = TypeVar("MakerT")


class ByMember(Generic[MakerT]):
    """Calls `make` once per member of a group, with the settings for the member's rows, and caches the result. Calls `make` again when the
    settings change.
    """

    def __init__(self, make: Callable[[Forms], MakerT]) -> None:
        self._make = make
        self._made: dict[str, tuple[Forms, MakerT]] = {}

    def of(self, run: Run) -> MakerT:
        found = self._made.get(run.member)
        if found is None or found[0] is not run.forms:
            found = self._made[run.member] = (run.forms, self._make(run.forms))
        return found[1]


class GroupEntries:
    """Converts the changes of a group to entries (`consumers.served.ServedEntries`). Raises ConfigurationError for an invalid time zone."""

    def __init__(self, display: Display) -> None:
        # Makes one entry maker at the start, so that an invalid setting raises its error now and not with the first change.
        entry_maker(display, Forms())
        self._makers = ByMember(lambda forms: entry_maker(display, forms))

    def messages(self, content: Sequence[Run], /) -> bytes:
        return b"".join(self._makers.of(run).messages(run.chosen) for run in content)


class GroupMessages:
    """Makes the messages of a group for one broker. Raises ConfigurationError for an invalid rule in conf/."""

    def __init__(self, config: BrokerConfig) -> None:
        message_maker(config, Forms())
        self._makers = ByMember(lambda forms: message_maker(config, forms))

    def messages(self, content: Sequence[Run], batch_id: int) -> list[Message]:
        """Returns the messages of a batch in the order of `content`. Each topic and partition has its messages in this order too."""
        return [message for run in content for message in self._makers.of(run).messages(run.chosen, batch_id)]


def check_settings(config: GroupConfig) -> None:
    """Raises ConfigurationError if a setting for a group's clients or brokers is invalid."""
    if config.canal_server.port:
        address_of(config.canal_server)
    GroupEntries(display_of(config.canal_server))
    for broker in config.brokers:
        GroupMessages(broker)


def group_serving_of(config: GroupConfig, consumers: Callable[[], GroupConsumers]) -> Serving:
    """Returns the object that listens for the Canal clients of a group, if conf/ has a port for them."""
    display = display_of(config.canal_server)
    return Serving(config.canal_server, config.name, consumers, lambda: GroupEntries(display))


def group_sending_of(config: GroupConfig, consumers: Callable[[], GroupConsumers]) -> Sending[Runs]:
    """Returns the object that sends the changes of a group to its brokers. Raises ConfigurationError for an invalid rule in conf/."""
    return Sending(config.brokers, consumers, lambda broker: GroupMessages(broker).messages)
