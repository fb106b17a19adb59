"""Names the subjects of a table's schemas, registers new schemas, and caches their ids."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from sluice.cdc_engine.binlog.rows_by_schema.columns import SchemaIds, TableSchemas
from sluice.cdc_engine.brokers.registry.client import SchemaRegistry
from sluice.cdc_engine.brokers.registry.field_numbers import Followed
from sluice.cdc_engine.brokers.registry.schema_forms import AVRO, SchemaForm
from sluice.cdc_engine.errors import PublishError

IDS_MAX = 10_000  # The most ids that are cached. When the cache is full, it is emptied.
CHECK_SECONDS = 120.0  # A cached id that is older than this is looked up in the registry again before it is used.
log = structlog.get_logger()


class _Known(NamedTuple):
    """A cached answer of the registry: the id of a schema, the schema's text in the registry, and when the registry answered, by the clock
    of `Subjects`.
    """

    number: int
    text: str
    checked: float


class Subjects:
    """The subjects of one broker. Looks up each schema of a subject in the registry when it is first used, and again after `CHECK_SECONDS`.

    - `form`: the format of rows.
    - `by_record`: whether subjects are named `<topic>-<record>`, so that several tables can share a topic. If False, they are named
      `<topic>-value` and `<topic>-key`.
    - `registers`: whether new schemas are registered.
    - `clock`: a monotonic clock.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        form: SchemaForm = AVRO,
        *,
        by_record: bool = False,
        registers: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.form = form
        self._registry, self._by_record, self._registers, self._clock = registry, by_record, registers, clock
        self._ids: dict[tuple[str, str], _Known] = {}
        self._logged: set[tuple[str, str]] = set()

    def ids(self, topic: str, schemas: TableSchemas) -> SchemaIds:
        """Returns the ids of a table's schemas for a topic. Registers a schema that the registry does not have, if `registers` is True.
        Raises PublishError if a schema is not registered, or if the registry does not answer.
        """
        key = self._known(self._name(topic, "key", schemas.key_record), schemas.key) if schemas.key else None
        value = self._known(self._name(topic, "value", schemas.record), schemas.value)
        return SchemaIds(value.number, key.number if key else None, value.text, key.text if key else "")

    def _name(self, topic: str, side: str, record: str) -> str:
        return f"{topic}-{record}" if self._by_record else f"{topic}-{side}"

    def _known(self, subject: str, schema: str) -> _Known:
        now, before = self._clock(), self._ids.get((subject, schema))
        if before is not None and now - before.checked < CHECK_SECONDS:
            return before
        followed = self.form.follow(self._registry.latest(subject), schema) if before is None else Followed(before.text)
        found = self._registry.known(subject, followed.text)
        if before is not None and found != before.number:
            raise self._replaced(subject, before.number, found)
        if found is None and followed.text != schema and (same := self._earlier(subject, schema)) is not None:
            followed, found = same, self._registry.known(subject, same.text)
        if found is None:
            found = self._registered(subject, followed)
        if len(self._ids) >= IDS_MAX:
            self._ids.clear()
        known = self._ids[subject, schema] = _Known(found, followed.text, now)
        return known

    def _earlier(self, subject: str, schema: str) -> Followed | None:
        """Returns an earlier version of a subject: the newest one that has the same columns with the same types as `schema`, but possibly
        other field numbers. Returns None if no earlier version has these columns. After a restart, Sluice may send again a batch that is
        older than a schema change, and then needs this version.
        """
        versions = self._registry.earlier(subject)
        return next((Followed(each) for each in versions if self.form.follow(each, schema).text == each), None)

    def _registered(self, subject: str, followed: Followed) -> int:
        """Registers a new schema, and returns its id. Raises PublishError if the subject belongs to another table, if `registers` is False,
        or if a column has another type than in the subject's latest schema.
        """
        where = self._registry.where
        if followed.other:
            raise PublishError(
                f"the latest schema of subject {subject} of {where} is not a schema of this table: {followed.other}. Send the table to "
                "another topic; if several tables share the topic, set `subjects: topic_record`"
            )
        if not self._registers:
            self._log(subject, followed.text)
            raise PublishError(
                f"{where} does not have the schema of subject {subject}: register the schema, or set "
                "`auto_register: true`. The engine's log has the schema (schema_to_register)"
            )
        if followed.changed:
            self._log(subject, followed.text)
            raise PublishError(
                f"columns have other types in the latest version of subject {subject} of {where}: "
                f"{'; '.join(followed.changed)}. Consumers with the new schema would {self.form.loss}. Send "
                "the table to another topic, or register the new schema under the subject yourself. The "
                "engine's log has the schema (schema_to_register)"
            )
        return self._registry.register(subject, followed.text)

    def _log(self, subject: str, schema: str) -> None:
        """Logs a schema that an operator must register, once for each subject and schema."""
        if (subject, schema) not in self._logged:
            self._logged.add((subject, schema))
            log.warning("schema_to_register", subject=subject, schema=schema)

    def _replaced(self, subject: str, number: int, found: int | None) -> PublishError:
        now = f"gives this schema the id {found}" if found is not None else "does not have this schema"
        return PublishError(
            f"{self._registry.where} gave the schema of subject {subject} the id {number}, and the registry "
            f"now {now}. The registry was restored or replaced, and messages with the id {number} were sent. "
            "Restore the registry's schemas. To continue with the registry's new ids, restart the engine"
        )
