"""conf/sluice.yaml and conf/destinations/*.yaml as checked values. Read by `launcher`, `orchestration` and the console; never by a stage.

A stage gets the few values it needs as arguments, so that no room depends on the shape of a file. Secrets are named by the environment
variable that holds them; the value is read where a connection is opened and nowhere else.
"""

from cdc_engine.config.consumers import CanalServerConfig
from cdc_engine.config.destination import BatchConfig, DestinationConfig, DrainConfig, EqualityConfig, RingConfig
from cdc_engine.config.engine import EngineConfig
from cdc_engine.config.group import GroupConfig
from cdc_engine.config.reading import conf_dir, load_config
from cdc_engine.config.sluice import MetaConfig, SluiceConfig, SparkConfig, path_clashes
from cdc_engine.config.table import SchemaChangesConfig, TableConfig

__all__ = [
    "BatchConfig",
    "CanalServerConfig",
    "DestinationConfig",
    "DrainConfig",
    "EngineConfig",
    "EqualityConfig",
    "GroupConfig",
    "MetaConfig",
    "RingConfig",
    "SchemaChangesConfig",
    "SluiceConfig",
    "SparkConfig",
    "TableConfig",
    "conf_dir",
    "load_config",
    "path_clashes",
]
