"""Defines the settings of metrics, of Dagster's assets, and of maintenance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, Field, model_validator

from sluice.cdc_engine.source.settings import Strict, refuse_without_port
from sluice.cdc_engine.time_text import cron

# What Dagster accepts as an owner and as a group. conf/ is checked with these expressions, because one invalid name would keep Dagster from
# loading any definition.
_OWNER = re.compile(r"team:[\w.-]+|[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
_GROUP = re.compile(r"[A-Za-z0-9_]{0,200}")
HOURLY = "hourly"
# The largest number of minutes (a year) and of hours (a hundred years) that a setting may have.
MINUTES_MAX, HOURS_MAX = 525_600.0, 876_000.0


def _owner(text: str) -> str:
    if not _OWNER.fullmatch(text):
        raise ValueError(f"{text!r} is not an owner: use team:NAME, or an email address such as data.team@example.com")
    return text


def _group(text: str) -> str:
    if not _GROUP.fullmatch(text):
        raise ValueError(f"{text!r} is not a group name: use up to 200 characters of A-Z, a-z, 0-9 and _")
    return text


def _minutes(minutes: float) -> float:
    if 0 < minutes < 1 or minutes > MINUTES_MAX:
        raise ValueError(
            f"{minutes:g} minutes is not between 1 (Dagster checks once a minute) and {MINUTES_MAX:g}: set a number in this range, or 0 "
            "for no policy"
        )
    return minutes


def _often(text: str) -> str:
    return text if text == HOURLY else cron(text)


Owner = Annotated[str, AfterValidator(_owner)]
Group = Annotated[str, AfterValidator(_group)]
Cron = Annotated[str, AfterValidator(cron)]


class MetricsConfig(Strict):
    """The Prometheus endpoint of this host's engines."""

    port: int = Field(
        0, ge=0, le=65535, description="Port of the Prometheus endpoint. 0: no endpoint. Canal uses 11112."
    )
    host: str = Field(
        "127.0.0.1", description="Address on which the Prometheus endpoint listens. The endpoint has no authentication."
    )

    @model_validator(mode="after")
    def _has_a_port(self) -> MetricsConfig:
        refuse_without_port(self)
        return self


class MaintenanceConfig(Strict):
    """When a destination's Delta tables are compacted and vacuumed. `sluice maintain` does both immediately."""

    optimize: Annotated[str, AfterValidator(_often)] = Field(
        HOURLY,
        description=(
            "Cron schedule in UTC for rewriting the files of Delta tables that have many small files or many deleted "
            "rows. `hourly`: once an hour, at a different minute for each destination. Empty: no schedule."
        ),
    )
    vacuum: Cron = Field(
        "",
        description="Cron schedule in UTC for deleting files that no table version within `retention_hours` needs. "
        "Empty: no schedule.",
    )
    retention_hours: float = Field(
        168.0,
        ge=1,
        le=HOURS_MAX,
        description=(
            "Hours for which the files of old table versions are kept, so that time travel and consistent snapshots of "
            "the tables are possible."
        ),
    )
    log_days: int = Field(
        30,
        ge=1,
        le=36_500,
        description="Days for which a Delta table keeps its log. The commands `history` and `why` read this log.",
    )

    def optimize_at(self, hourly: str) -> str:
        """Returns the cron schedule of OPTIMIZE, or "" if there is none. `hourly` is the cron schedule to use if the setting is
        "hourly".
        """
        return hourly if self.optimize == HOURLY else self.optimize


class DagsterConfig(Strict):
    """How long Dagster's storage keeps events, and runs that have ended."""

    removed: ClassVar[Mapping[str, str]] = {
        "prune": "old runs are removed once an hour; to keep all of them, switch off prune_dagster_schedule in Dagster, under Automation",
        "keep_failures_hours": "failed runs are kept for a week, or for `keep_hours` if that is longer",
    }

    keep_hours: float = Field(
        24.0,
        ge=1,
        le=HOURS_MAX,
        description=(
            "Hours for which Dagster's runs and events are kept. Failed runs are kept for a week at least. The newest events "
            "of each asset and the newest 50 runs of each job are kept longer."
        ),
    )


class AssetConfig(BaseModel):
    """The Dagster settings of assets. A destination's settings apply to all its assets, and a table's settings to the table's asset."""

    owners: tuple[Owner, ...] = Field(
        (),
        description="Owners of the assets in Dagster, as `team:name` or an email address. Default for a table: the "
        "owners of its destination.",
    )
    group: Group = Field(
        "",
        description=(
            "Dagster group of the assets. Default for a destination: its name. Default for a table: the group of "
            "its destination."
        ),
    )


class AssetOfTable(AssetConfig):
    """The Dagster settings of one table."""

    fresh_within_minutes: Annotated[float, AfterValidator(_minutes)] = Field(
        0.0,
        ge=0,
        description=(
            "Dagster's freshness policy of the table's asset: the asset is overdue if no batch was merged into the table "
            "for this many minutes. 0: no policy."
        ),
    )


class AssetsOfDestination(AssetConfig):
    """The Dagster settings of all assets of a destination."""

    lag_seconds_max: float = Field(
        900.0,
        gt=0,
        description=(
            "The check `caught_up` of the engine's asset fails if the lake is more than this many seconds behind the "
            "source."
        ),
    )
    table_assets_max: int = Field(
        500,
        ge=0,
        description=(
            "Maximum number of tables for which each table has its own asset in Dagster. If a destination has more "
            "tables, the tables without an entry in `tables` share one asset per database."
        ),
    )
