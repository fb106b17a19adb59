"""Makes Spark Connect servers older than 4.0 understand the statements of pyspark 4, and explains an error of such servers.

Such a server reads a statement from the field `SqlCommand.sql` (Spark's commands.proto), which is deprecated and which pyspark 4 leaves
empty: the server then reports a syntax error in an empty text. A newer server ignores the field beside `input`."""

from __future__ import annotations

from typing import Any

NO_REPLACE = "does not support truncate in batch mode"
ADVICE = (
    "Spark 3.5.6 and later cannot replace a table with Delta 3.3 (delta-io/delta#4671): use Spark 3.5.5, Spark 4, or a Delta with the "
    "correction"
)


def explained(line: str) -> str:
    """Returns the first line of an error of Spark, with advice if its cause is the version of Spark."""
    return f"{line} {ADVICE}" if NO_REPLACE in line else line


def fill_old_field(client: Any) -> None:
    """Makes a Connect client also send each SQL statement in the field that old servers read."""
    execute_command = client.execute_command

    def execute(command: Any, *arguments: Any, **options: Any) -> Any:
        if command.HasField("sql_command"):
            command.sql_command.sql = command.sql_command.input.sql.query
        return execute_command(command, *arguments, **options)

    client.execute_command = execute
