"""Who outside may ask how the engines are, what Dagster shows, and when the lake's files are looked after."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cdc_engine.time_words import cron

# What Dagster refuses of these keeps it from showing any destination, so it is refused here.
_OWNER = re.compile(r"team:[\w.-]+|[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
_GROUP = re.compile(r"[A-Za-z0-9_]{0,200}")
_COLLECTOR = re.compile(r"https?://[^\s/@]+(/[^\s@]*)?")
HOURLY = "hourly"
MINUTES_MAX, HOURS_MAX = 525_600.0, 876_000.0  # a year, a hundred years


def _owner(text: str) -> str:
    if not _OWNER.fullmatch(text):
        raise ValueError(
            f"{text!r} is no owner: name a team (team:name), or an email address of plain letters with 2 to 7 of them at its end"
        )
    return text


def _group(text: str) -> str:
    if not _GROUP.fullmatch(text):
        raise ValueError(f"{text!r} is no group: use up to 200 of A-Z, a-z, 0-9 and _")
    return text


def _minutes(minutes: float) -> float:
    if 0 < minutes < 1 or minutes > MINUTES_MAX:
        raise ValueError(
            f"{minutes:g} minutes cannot be: Dagster looks once a minute; 1 to {MINUTES_MAX:g}, or 0 for none"
        )
    return minutes


def _often(text: str) -> str:
    return text if text == HOURLY else cron(text)


Owner = Annotated[str, AfterValidator(_owner)]
Group = Annotated[str, AfterValidator(_group)]
Cron = Annotated[str, AfterValidator(cron)]
STRICT = ConfigDict(extra="forbid", frozen=True, validate_default=True)  # as all of conf/


class MetricsConfig(BaseModel):
    """Where Prometheus may ask this host's engines."""

    model_config = STRICT

    port: int = Field(0, ge=0, le=65535, description="11112 is Canal's; 0: nothing listens")
    host: str = Field("127.0.0.1", description="address to listen on; it asks for no password")


class TelemetryConfig(BaseModel):
    """Where OpenTelemetry's traces of batches are sent; without it, where OpenTelemetry's own variables say, if they do."""

    model_config = STRICT

    otlp: str = Field("", description="a collector, as http://host:4318: OTLP over HTTP, protobuf")
    headers: dict[str, str] = Field({}, description="sent along; values may be $NAME of the environment")

    @model_validator(mode="after")
    def _reachable(self) -> TelemetryConfig:
        if self.otlp and not _COLLECTOR.fullmatch(self.otlp):
            raise ValueError("otlp must be http://host:port or https://host:port, secrets in headers as $NAME")
        return self


class MaintenanceConfig(BaseModel):
    """When the files of a destination's Delta tables are written anew or removed; `sluice maintain` does it at once."""

    model_config = STRICT

    optimize: Annotated[str, AfterValidator(_often)] = Field(
        HOURLY,
        description="cron, in UTC: writes files anew where it pays; hourly: at a minute of its own; empty: the schedule is switched off",
    )
    vacuum: Cron = Field("", description="cron, in UTC: removes files that left a table; empty: switched off")
    retention_hours: float = Field(
        168.0,
        ge=1,
        le=HOURS_MAX,
        description="how long files that left a table stay: so far back go time travel and consistent cuts",
    )
    log_days: int = Field(30, ge=1, le=36_500, description="how long a table's log tells its history")

    def optimize_at(self, hourly: str) -> str:
        """Cron, or empty. `hourly`: the minute of a destination that conf/ gives none."""
        return hourly if self.optimize == HOURLY else self.optimize


class AssetOfTable(BaseModel):
    """Of one table."""

    owners: tuple[Owner, ...] = Field((), description="of the asset in Dagster; the destination's, if empty")
    group: Group = Field("", description="the asset's group in Dagster; the destination's, if empty")
    fresh_within_minutes: Annotated[float, AfterValidator(_minutes)] = Field(
        0.0,
        ge=0,
        description="Dagster's freshness policy, for a table that always changes: fails when nothing was merged for so long; 0: none",
    )


class AssetsOfDestination(BaseModel):
    """Of all assets of a destination."""

    owners: tuple[Owner, ...] = Field((), description="of its assets in Dagster: team:name, or an email address")
    group: Group = Field("", description="group of its assets in Dagster; empty: its name")
    lag_seconds_max: float = Field(
        900.0,
        gt=0,
        description="the engine's check `caught_up` fails where the lake is further than this after the source",
    )
