"""The schemas that operators gave for tables of which none could be known, one file each in the folder `schema-resolutions`.

`sluice schema resolve` keeps one for the stop that a table is in; the history asks when it meets that stop again: the same table, stopped
for the same reason, which names the place. Written beside, forced to disk and renamed. Owns those files.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError
from cdc_engine.table_meta.schema import TableSchema

FOLDER = "schema-resolutions"


class Resolutions:
    """Of the destination whose directory this is. Both methods raise MetaError when a file cannot be written or understood."""

    def __init__(self, destination_dir: Path) -> None:
        self._folder = destination_dir / FOLDER

    def keep(self, schema: TableSchema, reason: str) -> None:
        """`schema` holds from where the table stopped for this `reason`."""
        path = self._path(schema.database, schema.table, reason)
        record = {"database": schema.database, "table": schema.table, "reason": reason, "schema": schema.to_json()}
        keep_file(path, json.dumps(record, indent=1))

    def schema(self, database: str, table: str, reason: str) -> TableSchema | None:
        """What an operator said the table has where it stopped for this reason."""
        path = self._path(database, table, reason)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return TableSchema.from_json(database, table, record["schema"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MetaError(f"{path} cannot be read: {error}; remove it and resolve the schema anew") from error

    def _path(self, database: str, table: str, reason: str) -> Path:
        digest = hashlib.sha256("\0".join((database, table, reason)).encode()).hexdigest()
        return self._folder / f"{digest[:32]}.json"
