"""Defines the engine sensors. Each destination has a sensor of its own. So a slow or stopped sensor delays no other destination, and a
person can switch off a single sensor in the UI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from sluice.orchestration.sensor.runs import KeptInstance, RunStore, label_of
from sluice.orchestration.sensor.tick import DestinationSensor, Ticker, idle_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluice.orchestration.assets import MergeJob
    from sluice.orchestration.base.ports import EngineHost

# The minimum interval of a sensor, which is shorter than the 5 s between two evaluations by Dagster's daemon. With a minimum interval of 5
# s, the daemon would skip an evaluation that comes a millisecond early, and the interval would become ten seconds.
INTERVAL_SECONDS_MIN = 1


def engine_sensor(line: DestinationSensor, job: MergeJob, host: Callable[[], EngineHost]) -> dg.SensorDefinition:
    """Returns the sensor that starts a destination's engine, settles its batches and requests the runs that merge them."""
    ticker, instance = Ticker(line, host), KeptInstance()

    @dg.sensor(
        name=f"{line.destination}_engine",
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS_MIN,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Runs the engine of {line.destination}: acks merged batches, rolls failed batches back, and "
            "hands out the next batch. A test of the sensor here is harmless. If the sensor is switched off, "
            "merges stop, and no change is lost."
        ),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened = instance.of(context)
        runs = RunStore(opened, job.name, label_of(context), line.ledger)
        return ticker.tick(runs, context.cursor, idle_seconds(line.destinations, opened))

    return sense
