"""What a group hands out, as entries for clients and as messages for brokers: each run as the member that it is of shows its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from cdc_engine.binlog.entries.texts import Display
from cdc_engine.brokers.publisher import Message
from cdc_engine.config.brokers import BrokerConfig
from cdc_engine.instance.consumers.forms import Forms
from cdc_engine.instance.consumers.group.feed import Run
from cdc_engine.instance.consumers.sending import message_maker
from cdc_engine.instance.consumers.served import entry_maker

MakerT = TypeVar("MakerT")


class ByMember(Generic[MakerT]):
    """A maker for each member, made anew where its rows are shown otherwise. Raises what `make` does."""

    def __init__(self, make: Callable[[Forms], MakerT]) -> None:
        self._make = make
        self._made: dict[str, tuple[Forms, MakerT]] = {}

    def of(self, run: Run) -> MakerT:
        found = self._made.get(run.member)
        if found is None or found[0] is not run.forms:
            found = self._made[run.member] = (run.forms, self._make(run.forms))
        return found[1]


class GroupEntries:
    """Implements `consumers.served.Entries`. Raises ConfigurationError for a time zone that is none."""

    def __init__(self, display: Display) -> None:
        entry_maker(display, Forms())  # what is wrong with it is said at the start
        self._makers = ByMember(lambda forms: entry_maker(display, forms))

    def messages(self, content: Sequence[Run], /) -> bytes:
        return b"".join(self._makers.of(run).messages(run.chosen) for run in content)


class GroupMessages:
    """Of one broker. Raises ConfigurationError where a rule of conf/ is none."""

    def __init__(self, config: BrokerConfig) -> None:
        message_maker(config, Forms())
        self._makers = ByMember(lambda forms: message_maker(config, forms))

    def messages(self, content: Sequence[Run], batch_id: int) -> list[Message]:
        """In the order of the runs, within each topic and partition too."""
        return [message for run in content for message in self._makers.of(run).messages(run.chosen, batch_id)]
