"""The code location: `dagster api grpc -m orchestration.definitions` loads it, and so does every run process.

Importing it reads conf/ and one file a destination; it opens no connection and starts no engine and no Spark. A wrong conf/ is one
ConfigurationError with all that is wrong.
"""

from cdc_engine.config import load_config
from orchestration.code_location import build_definitions
from orchestration.seams import production

defs = build_definitions(load_config(), production())
