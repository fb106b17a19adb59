"""Defines the settings of a group. A file of conf/destinations with `members` describes a group, which has neither a source nor a lake of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, model_validator

from sluice.cdc_engine.config.consumers import RenderingConfig
from sluice.cdc_engine.config.destination import DestinationConfig
from sluice.cdc_engine.config.stream import StreamConfig

MEMBERS = "members"
OF_SOURCES = frozenset(
    {
        "source",
        "sources",
        "stream",
        "heartbeat",
        "failover",
        "archive",
        "archive_fetch",
        "start",
        "retention_left_hours_min",
    }
)


class GroupConfig(StreamConfig):
    """A group: the transactions of several destinations as one stream, in commit order."""

    members: tuple[str, ...] = Field(
        min_length=1, description="Destinations whose transactions form one stream. Each member has its own source."
    )
    include: str = Field(
        r".*\..*",
        description="Comma-separated regular expressions of `database.table`, among the tables that the members capture.",
    )
    exclude: str = Field("", description="Comma-separated regular expressions of `database.table` to leave out.")
    wait_seconds: float | None = Field(
        None,
        ge=2,
        description=(
            "Seconds for which the group waits for a member that does not answer. Then the group continues without this "
            "member, and sends the member's transactions late. Empty: the group waits without a limit."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _settings_of_groups(cls, record: Any) -> Any:
        """Refuses settings that only a destination may have. The message says in which file to write them."""
        if not isinstance(record, dict):
            return record
        others = [
            setting
            for setting in record
            if setting not in cls.model_fields and setting in DestinationConfig.model_fields
        ]
        if sources := [setting for setting in others if setting in OF_SOURCES]:
            raise ValueError(
                f"{', '.join(sources)}: a group has no source of its own; write these settings in the files "
                "of the members, or remove `members`"
            )
        if others:
            raise ValueError(
                f"{', '.join(others)}: a group has no lake and no tables; write these settings in the files "
                "of the members"
            )
        return record

    @model_validator(mode="after")
    def _consistent(self) -> GroupConfig:
        if len(set(self.members)) < len(self.members):
            raise ValueError("members: the list names a destination twice: remove one entry")
        if not self.has_consumers:
            raise ValueError("a group has no lake, so it needs consumers: set a canal_server with a port, or brokers")
        if self.canal_server.full_batches:
            raise ValueError(
                "canal_server.full_batches: a get of a group always returns as soon as one change is available; remove "
                "full_batches, or set it in the file of a member"
            )
        if self.canal_server.fetch_unit != "kibibytes":
            raise ValueError(
                "canal_server.fetch_unit: the fetch size of a group is always in kibibytes; remove fetch_unit, or set "
                "it in the file of a member"
            )
        _refuse_selections(self.canal_server, *self.brokers)
        return self


def _refuse_selections(*consumers: RenderingConfig) -> None:
    for each in consumers:
        for name in ("rows_query", "transaction_entries", "ddl", "other_statements", "row_entries"):
            if name in type(each).model_fields and getattr(each, name) != type(each).model_fields[name].default:
                raise ValueError(
                    f"{name}: consumers of a group get all kinds of entries; remove {name}, or set it for a consumer of a member"
                )


def is_group(record: Mapping[str, Any]) -> bool:
    """Returns whether a file of conf/destinations describes a group."""
    return MEMBERS in record


def group_problems(groups: Mapping[str, GroupConfig], destinations: Mapping[str, DestinationConfig]) -> Iterator[str]:
    """Yields a message for each member of a group that is itself a group, or that does not exist."""
    for name, group in sorted(groups.items()):
        for member in group.members:
            if member in groups:
                yield (
                    f"destinations/{name}.yaml: members: {member} is a group too; list the members of {member} instead"
                )
            elif member not in destinations:
                known = ", ".join(sorted(destinations)) or "none"
                yield (
                    f"destinations/{name}.yaml: members: the destination {member} does not exist; "
                    f"conf/destinations has {known}"
                )
