"""Names the subjects of a table's schemas, registers new ones, and remembers their numbers for a while. Used by `brokers.messages`."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from sluice.cdc_engine.binlog.rows_by_schema.columns import SchemaIds, TableSchemas
from sluice.cdc_engine.brokers.registry.changed_columns import changed_columns
from sluice.cdc_engine.brokers.registry.client import SchemaRegistry
from sluice.cdc_engine.errors import PublishError

IDS_MAX = 10_000  # cached numbers
CHECK_SECONDS = 120.0  # After this time the registry is asked again for a number that is still used.
log = structlog.get_logger()


class Subjects:
    """The subjects of one broker. The registry is asked for each subject and schema, and again after `CHECK_SECONDS`.

    `by_record`: a subject's name is that of the topic and the record, so that a topic may have the messages of several tables.
    `registers`: new schemas are registered. `clock`: seconds that never go back.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        *,
        by_record: bool = False,
        registers: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._by_record, self._registers, self._clock = registry, by_record, registers, clock
        self._ids: dict[tuple[str, str], tuple[int, float]] = {}
        self._logged: set[tuple[str, str]] = set()

    def ids(self, topic: str, schemas: TableSchemas) -> SchemaIds:
        """Returns the numbers of a table's schemas for a topic. Raises PublishError."""
        key = self._id(self._name(topic, "key", schemas.key_record), schemas.key) if schemas.key else None
        return SchemaIds(self._id(self._name(topic, "value", schemas.record), schemas.value), key)

    def _name(self, topic: str, side: str, record: str) -> str:
        return f"{topic}-{record}" if self._by_record else f"{topic}-{side}"

    def _id(self, subject: str, schema: str) -> int:
        now = self._clock()
        number, checked = self._ids.get((subject, schema), (None, 0.0))
        if number is not None and now - checked < CHECK_SECONDS:
            return number
        found = self._registry.known(subject, schema)
        if number is not None and found != number:
            raise self._replaced(subject, number, found)
        if found is None:
            found = self._registered(subject, schema)
        if len(self._ids) >= IDS_MAX:
            self._ids.clear()
        self._ids[subject, schema] = (found, now)
        return found

    def _registered(self, subject: str, schema: str) -> int:
        """Registers a new schema, unless a consumer with it would misread earlier messages."""
        if not self._registers:
            self._log(subject, schema)
            raise PublishError(
                f"{self._registry.where} does not have the schema of subject {subject}: register it, or set `auto_register: true`. "
                "The engine's log has the schema (schema_to_register)"
            )
        latest = self._registry.latest(subject)
        changed = changed_columns(latest, schema) if latest is not None else []
        if changed:
            self._log(subject, schema)
            raise PublishError(
                f"subject {subject} of {self._registry.where} has other types in its latest version: {'; '.join(changed)}. Consumers with "
                "the new schema would misread earlier messages. Send the table to another topic, or register the new schema under the "
                "subject yourself. The engine's log has it (schema_to_register)"
            )
        return self._registry.register(subject, schema)

    def _log(self, subject: str, schema: str) -> None:
        """Logs a schema that somebody must register, once."""
        if (subject, schema) not in self._logged:
            self._logged.add((subject, schema))
            log.warning("schema_to_register", subject=subject, schema=schema)

    def _replaced(self, subject: str, number: int, found: int | None) -> PublishError:
        now = f"gives it the id {found}" if found is not None else "does not have it"
        return PublishError(
            f"{self._registry.where} gave the schema of subject {subject} the id {number}, and now {now}: it was restored or replaced, and "
            "sent messages have the first id. Restore the registry's schemas. To continue with its new ids, restart the engine"
        )
