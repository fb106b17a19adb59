"""Assigns field numbers to the columns of a Protobuf schema, so that the numbers agree with the latest schema of the subject. Pure.

A field number never changes its meaning:
- A column with the same name and type keeps its number. A new column gets the next free number.
- The field of a dropped column stays in the schema and is marked as `deprecated`, because Apicurio refuses a schema without the field, even
  if the field's number is reserved. If the same column with the same type is added again, it uses this field again.
- A column whose type has changed gets a new number, and the old number is reserved.

After a restart, Sluice may send again a batch that is older than a schema change, although the new schema is registered already. The
messages of the batch then get the field numbers of the earlier version of the subject that has the batch's columns (see `Subjects`).
"""

from __future__ import annotations

import dataclasses
import operator

from sluice.cdc_engine.binlog.rows_by_schema.protobuf_schema import ROWS, rows_of
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_text import (
    ProtobufField,
    ProtobufMessage,
    ProtobufSchema,
    after,
    parsed,
)


@dataclasses.dataclass(frozen=True)
class Followed:
    """The schema to register for a subject (`text`), after a comparison with the subject's latest schema. `changed` are the columns whose
    types differ from the latest schema. `other` is empty, or says why the latest schema is not a schema of this table.
    """

    text: str
    changed: tuple[str, ...] = ()
    other: str = ""


def with_numbers(latest: str | None, own: str) -> Followed:
    """Returns a table's schema `own` with the field numbers of `latest`, the subject's latest schema. If both schemas have the same fields,
    returns `latest`. If `latest` is None or not a schema of this table, returns `own` unchanged.
    """
    if latest is None:
        return Followed(own)
    new = parsed(own)
    try:
        old = parsed(latest)
        before = rows_of(old)
    except ValueError as error:
        return Followed(own, other=unreadable(error))
    if old.record != new.record:
        return Followed(own, other=f"the latest version is {old.record}")
    if _others(old) != _others(new):
        return Followed(own, other="the latest version has another envelope")
    rows, changed = _continued(before, rows_of(new))
    if _said(rows) == _said(before):
        return Followed(latest)
    messages = tuple(rows if each.name == rows.name else each for each in new.messages)
    return Followed(ProtobufSchema(new.package, messages).text, changed)


def unreadable(error: ValueError) -> str:
    return f"the latest version cannot be read: {error}"


def _continued(before: ProtobufMessage, own: ProtobufMessage) -> tuple[ProtobufMessage, tuple[str, ...]]:
    """Returns a Protobuf message with the columns of `own` and the field numbers of `before`. Also returns the columns whose types
    differ.
    """
    known, number = {field.name: field for field in before.fields}, before.next_number
    fields, reserved, changed = list[ProtobufField](), list(before.reserved), list[str]()
    for field in own.fields:
        earlier = known.pop(field.name, None)
        if earlier is not None and earlier.type == field.type:
            fields.append(dataclasses.replace(field, number=earlier.number))
            continue
        fields.append(dataclasses.replace(field, number=number))
        number = after(number)
        if earlier is not None:
            reserved.append((earlier.number, earlier.number))
            if not earlier.deprecated:
                changed.append(f"{field.name} from {earlier.type} to {field.type}")
    fields += [dataclasses.replace(field, deprecated=True) for field in known.values()]
    ordered = sorted(fields, key=operator.attrgetter("number"))
    return ProtobufMessage(own.name, tuple(ordered), tuple(sorted(reserved))), tuple(changed)


def _others(schema: ProtobufSchema) -> dict[str, set[tuple[str, int, str, str]]]:
    """Returns the fields of each Protobuf message of a schema, by the message's name. Leaves out the messages with the table's columns, so
    that for example Envelope remains. A field is (name, number, type, label).
    """
    return {each.name: {field[:4] for field in _said(each)[0]} for each in schema.messages if each.name not in ROWS}


def _said(message: ProtobufMessage) -> tuple[frozenset[tuple[str, int, str, str, bool]], frozenset[tuple[int, int]]]:
    """Returns the fields and the reserved numbers of a message as sets, so that two messages can be compared without regard to order."""
    fields = ((field.name, field.number, field.type, field.label, field.deprecated) for field in message.fields)
    return frozenset(fields), frozenset(message.reserved)
