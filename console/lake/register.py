"""Implements `sluice lake register`: registers the Delta tables of a destination in the catalog that conf/ names."""

from __future__ import annotations

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files.catalog_record import Registered
from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.console.source.query import require_destination
from sluice.orchestration.base.lake_settings import lake_error_line
from sluice.orchestration.run.catalog.registration import register_tables
from sluice.spark_jobs.errors import SparkJobError


def register(config: SluiceConfig, destination: str) -> Registered:
    """Looks up every table of a destination in the catalog, and registers the tables that the catalog lacks. Returns the record of all
    registered tables. Raises ConfigurationError if conf/ has no catalog, and ActRefusedError if the catalog refuses the registration.
    """
    require_destination(config, destination)
    if config.catalog is None:
        raise ConfigurationError(
            "conf/sluice.yaml has no catalog: set catalog.name, then run `sluice lake register` again"
        )
    try:
        return register_tables(config, destination, whole=True)
    except SparkJobError as error:
        raise ActRefusedError(lake_error_line(config, error)) from error
