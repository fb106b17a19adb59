"""Makes Spark Connect servers before 4.0 accept the SQL statements of pyspark 4, and adds advice to one of their errors.

Servers before 4.0 read a statement from the field `SqlCommand.sql` (Spark's commands.proto). The field is deprecated, and pyspark 4 does
not set it, so the server reports a syntax error in an empty text. Newer servers ignore the field if `input` is set.
"""

from __future__ import annotations

from typing import Any

NO_REPLACE = "does not support truncate in batch mode"
ADVICE = (
    "Spark 3.5.6 and later cannot replace a table with Delta 3.3 (delta-io/delta#4671): use Spark 3.5.5, "
    "Spark 4, or a Delta version in which that defect is corrected"
)


def explained(line: str) -> str:
    """Returns the first line of a Spark error. Adds advice if Spark's version causes the error."""
    return f"{line} {ADVICE}" if NO_REPLACE in line else line


def fill_old_field(client: Any) -> None:
    """Makes a Connect client send each SQL statement also in the field that old servers read."""
    execute_command = client.execute_command

    def execute(command: Any, *arguments: Any, **options: Any) -> Any:
        if command.HasField("sql_command"):
            command.sql_command.sql = command.sql_command.input.sql.query
        return execute_command(command, *arguments, **options)

    client.execute_command = execute
