"""Converts the changes of a group to entries for clients and messages for brokers, with the settings of the member from which each change
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.brokers.publisher import Message
from sluice.cdc_engine.config.brokers import BrokerConfig
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.instance.consumers.group.group_stream import Run
from sluice.cdc_engine.instance.consumers.sending import message_maker
from sluice.cdc_engine.instance.consumers.served import entry_maker

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
        """Returns the messages of a batch in the order of its runs of entries. Each topic and partition has its messages in this order
        too.
        """
        return [message for run in content for message in self._makers.of(run).messages(run.chosen, batch_id)]
