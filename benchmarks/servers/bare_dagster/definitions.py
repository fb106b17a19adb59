"""The code location of a bare Dagster: assets that nobody materializes, and one sensor that always skips."""

import dagster as dg

ASSETS = 20


@dg.sensor(minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING, target="*")
def idle_sensor() -> dg.SkipReason:
    """Skips each tick."""
    return dg.SkipReason("nothing has changed")


defs = dg.Definitions(
    assets=[dg.AssetSpec(f"t{number}") for number in range(ASSETS)],
    sensors=[idle_sensor],
)
