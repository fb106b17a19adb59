"""Defines the job that starts, stops, restarts or releases an engine from Dagster's launchpad. `sluice instance` does the same."""

# There is no `from __future__ import annotations`, because Dagster inspects the types of `context` and `config` at
# runtime.

import enum

import dagster as dg
from pydantic import Field

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.keeping import acts
from sluice.orchestration.base.one_destination import one_destination, with_destination
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.run.merge_run import as_failure

JOB = "operate_engine"


class InstanceAct(enum.Enum):
    """The operations on an engine, which the field `act` of the launchpad offers."""

    start = "start"
    stop = "stop"
    restart = "restart"
    release = "release"


ACTS = {
    InstanceAct.start: acts.start,
    InstanceAct.stop: acts.stop,
    InstanceAct.restart: acts.restart,
    InstanceAct.release: acts.release,
}


class Instance(dg.Config):
    """The config of a run that starts, stops, restarts or releases an engine. Dagster's launchpad shows its fields."""

    act: InstanceAct = Field(
        default=InstanceAct.start,
        description=(
            "start: starts a stopped engine; changes nothing if the engine runs. stop: the engine stays stopped on "
            "every host, even after restarts, until `start`. restart: stops and starts the engine. release: another "
            "host takes over the destination."
        ),
    )
    destination: str = ""  # `with_destination` replaces this field and accepts only names from conf/.
    wait_seconds: float = Field(
        default=acts.WAIT_SECONDS, description="Seconds after which the run fails. The request stays."
    )


def instance_job(settings: SluiceConfig) -> dg.JobDefinition:
    """Returns the job that starts, stops, restarts or releases an engine. A run of the job succeeds once the operation has taken effect."""

    names = set(settings.streams)
    config_class = with_destination(Instance, names)

    @dg.op(name="act_on_instance", config_schema=config_class.to_config_schema().as_field())
    def act_on_instance(context: dg.OpExecutionContext) -> None:
        config = config_class(**context.op_config)
        with as_failure():
            name = one_destination(config.destination, names)
            outcome = ACTS[config.act](name, settings.destination_dir(name), config.wait_seconds)
            if not outcome.done:
                raise MergeFailedError(outcome.message)
        context.log.info(outcome.message)
        context.add_output_metadata({"result": outcome.message})

    @dg.job(
        name=JOB,
        executor_def=dg.in_process_executor,
        tags={"sluice/instance": "yes"},
        description="Starts, stops or restarts the engine of a destination, or gives it to another host. Other engines continue. "
        "No change is lost.",
    )
    def job() -> None:
        act_on_instance()

    return job
