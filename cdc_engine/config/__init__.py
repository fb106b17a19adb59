"""Reads conf/sluice.yaml and conf/destinations/*.yaml into checked values.

Only the engine's launcher, the package `orchestration` and the console read conf/. The parts of the engine, such as the parser, get values
as arguments, so they do not depend on the format of a file. A setting for a secret names the variable, file or command that has the secret.
The secret itself is read each time a connection is opened.
"""

from sluice.cdc_engine.config.consumers import CanalServerConfig
from sluice.cdc_engine.config.destination import BatchConfig, DestinationConfig, EqualityConfig, RingConfig
from sluice.cdc_engine.config.engine import EngineConfig
from sluice.cdc_engine.config.group import GroupConfig
from sluice.cdc_engine.config.reading import conf_dir, load_config
from sluice.cdc_engine.config.sluice import MetaConfig, SluiceConfig, SparkConfig, clashing_tables, path_clashes
from sluice.cdc_engine.config.table import SchemaChangesConfig, TableConfig

__all__ = [
    "BatchConfig",
    "CanalServerConfig",
    "DestinationConfig",
    "EngineConfig",
    "EqualityConfig",
    "GroupConfig",
    "MetaConfig",
    "RingConfig",
    "SchemaChangesConfig",
    "SluiceConfig",
    "SparkConfig",
    "TableConfig",
    "clashing_tables",
    "conf_dir",
    "load_config",
    "path_clashes",
]
