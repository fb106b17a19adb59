"""Runs the code server, which does what `dagster api grpc` does, but starts each run as a fork of a process that has already imported what
runs need. The code server of Sluice's own definitions also runs the engines, unless conf/ puts the engines into another process.

python -m sluice.orchestration.code_server -m sluice.orchestration.definitions -h 127.0.0.1 -p 4266 --location-name sluice

The arguments are those of `dagster api grpc`. That program starts each run in a new interpreter, where importing Dagster, the definitions
and Spark's client takes seconds of processor time per batch. This code server starts a small process that imports them once, and each run
is a fork of that process. The small process has no threads, engine, connection or Dagster instance.

All imports are inside functions, because every run loads this module again as its main module, and does not need what the code server
imports.
"""

DEFINITIONS = "sluice.orchestration.definitions"
MAIN_WAIT_SECONDS = 5.0

# The modules that the fork server imports in advance: those that a run imports, as PYTHONPROFILEIMPORTTIME lists them. The fork server
# ignores a name that does not exist, so a test checks that each module exists.
WARM_MODULES = (
    "dagster._grpc.server",
    "dagster._core.execution.api",
    "dagster._core.execution.plan.active",
    "dagster._core.executor.in_process",
    "dagster._core.definitions.external_asset",
    "dagster._core.definitions.repository_definition.repository_data_builder",
    "dagster._core.instance.factory",
    "dagster._core.secrets.env_file",
    "dagster._core.storage.base_storage",
    "dagster._core.storage.event_log",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.migration.utils",
    "dagster._core.storage.root",
    "dagster._core.storage.runs",
    "dagster._core.storage.schedules",
    "dagster._core.system_config.composite_descent",
    "dagster._core.workspace.context",
    "dagster._utils.test.definitions",
    "multiprocessing.popen_forkserver",
    "multiprocessing.queues",
    "multiprocessing.synchronize",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "upath.implementations.local",
    "watchdog.observers.polling",
    "sluice.orchestration.rpc.run_caller",
    "sluice.orchestration.reload",
    "sluice.orchestration.run.spark_merge",
    "sluice.cdc_engine.destination_files",
    "sluice.spark_jobs.batch.run_batch",
    "sluice.spark_jobs.small.prepared",
    "pyspark.sql.connect.session",
    "deltalake",
)


def start_runs_warm(definitions_module: str) -> None:
    """Makes the code servers of this process start each run as a fork of a process that has already imported what a run needs."""
    import multiprocessing  # noqa: PLC0415
    from multiprocessing import forkserver  # noqa: PLC0415
    from typing import Any  # noqa: PLC0415

    from dagster._grpc.__generated__ import dagster_api_pb2  # noqa: PLC0415
    from dagster._grpc.server import DagsterApiServer  # noqa: PLC0415

    from sluice.orchestration import reload  # noqa: PLC0415
    from sluice.orchestration.base.server_state import ends_when  # noqa: PLC0415

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*WARM_MODULES, definitions_module])
    # The fork server, of which each run is a fork, starts now, in parallel with the imports of this process. Otherwise the first run would
    # wait for the fork server.
    forkserver.ensure_running()
    make = DagsterApiServer.__init__

    def make_warm(self: Any, *arguments: Any, **options: Any) -> None:
        reload.begin(self, lambda: make(self, *arguments, **options))
        self._mp_ctx = context
        ends_when(self._shutdown_once_executions_finish_event.is_set)

    def reload_code(*_: Any) -> Any:  # Dagster calls this when somebody presses "Reload".
        reload.reload_definitions(definitions_module)
        return dagster_api_pb2.ReloadCodeReply()

    warm: Any = DagsterApiServer
    warm.__init__, warm.reload_repositories, warm.show = make_warm, reload.reload_repositories, reload.show
    warm.ReloadCode = reload_code


def keep_engines() -> None:
    """Starts the engines in parallel with the code server, so that the first tick finds a staged batch. If an engine cannot start, its
    ticks report why. Also starts threads that apply changes of conf/ to engines and definitions, limit the size of logs and the memory of
    the process, and report to Dagster if no tick arrives.
    """
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.cdc_engine.errors import ConfigurationError  # noqa: PLC0415
    from sluice.cdc_engine.instance.small_process import keep_small  # noqa: PLC0415
    from sluice.cdc_engine.keeping.conf_watch import ConfWatch  # noqa: PLC0415
    from sluice.cdc_engine.keeping.logs import log_lines  # noqa: PLC0415

    log_lines()
    try:
        watch = ConfWatch(conf_dir(), "code-server")
    except ConfigurationError:
        return  # The load of the definitions reports this error.
    keep_small()
    from sluice.orchestration.upkeep import keep_up  # noqa: PLC0415

    keep_up(watch)


def wait_long() -> None:
    """Makes gRPC's main thread wake every few seconds instead of ten times a second. This thread waits for the end of the server."""
    from grpc import _common  # noqa: PLC0415

    # A signal interrupts the wait, so a long wait does not delay the end of the process.
    _common.MAXIMUM_WAIT_TIMEOUT = MAIN_WAIT_SECONDS


def main() -> None:
    """Runs the code server until a shutdown is requested."""
    import sys  # noqa: PLC0415

    from dagster._cli import cli  # noqa: PLC0415

    arguments = sys.argv[1:]
    module = arguments[arguments.index("-m") + 1] if "-m" in arguments else DEFINITIONS
    # Only the code server of Sluice's own definitions runs engines. For a user's own definitions, another process runs the engines, such as
    # `sluice engine`.
    if module == DEFINITIONS:
        # Called before `start_runs_warm`, because `keep_engines` records the conf/ in use, which the fork server of the runs reads.
        keep_engines()
    start_runs_warm(module)
    wait_long()
    cli(["api", "grpc", *arguments], prog_name="dagster")


if __name__ == "__main__":
    main()
