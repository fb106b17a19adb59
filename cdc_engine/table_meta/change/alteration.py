"""Computes the schema of a table after an ALTER TABLE, and the alterations that the lake's table needs. Pure functions.

A server executes the items of an ALTER TABLE in two steps, and this module does the same. In the first step, the server drops, changes and
renames existing columns; the items name these columns by their old names. In the second step, the server inserts added and moved columns in
the order of the items; FIRST and AFTER name columns by their new names. If an item moves a column, the items before this item still find
the column at its old position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeGuard

from sluice.batch_manifest.values import Alteration, AlterationKind
from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.binlog.charsets.statement_text import LiteralUnknownError, as_bytes, raw_in
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN, HIDDEN_END, ROW_END
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession
from sluice.cdc_engine.table_meta.change.evolution import (
    SCHEMA_MISMATCH,
    SCHEMA_UNKNOWN,
    CannotFollowError,
    Fills,
    declared_column,
    in_key,
    named_as_declared,
    same_name,
    stored,
    with_charset,
)
from sluice.cdc_engine.table_meta.change.initial_value import initial_value, known_default
from sluice.cdc_engine.table_meta.change.literal_value import InitialValueUnknownError
from sluice.cdc_engine.table_meta.change.periods import columns_in_period
from sluice.cdc_engine.table_meta.change.rewritten_values import ChangedColumn, why_rewritten
from sluice.cdc_engine.table_meta.change.widening import type_change
from sluice.cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from sluice.cdc_engine.table_meta.ddl.declared_type import declared_type
from sluice.cdc_engine.table_meta.ddl.statement import (
    AddColumn,
    AlterItem,
    AlterTable,
    ChangeColumn,
    DropColumn,
    DropKey,
    RenameColumn,
    SetCharset,
    SetDefault,
    SetKey,
    SetVersioning,
    SetVisible,
)
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, TableSchema, kept_engine, with_row_times

# Text type → number of bytes in which a value's length is stored. CONVERT TO can enlarge these types. longtext is left out, because there
# is no larger type.
_TEXT_PREFIX_BYTES = {"tinytext": 1, "text": 2, "mediumtext": 3}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Altered:
    """The effect of an ALTER TABLE: the table's `schema` after the statement, and the `alterations` that the lake's table needs.

    - `fills`: the values that new columns get in existing rows.
    - `unknown`: why the lake needs a re-snapshot, or empty if it needs none. It needs one if the binlog lacks values of new or changed
      columns, or if the statement adds a key to a table without a key.
    - `alterations`: in an order in which the lake can apply them. DROP and RENAME have the column's name before the statement; ADD, WIDEN
      and CONVERT have the name after the statement.
    """

    schema: TableSchema
    fills: Fills = ()
    alterations: tuple[Alteration, ...] = ()
    unknown: str = ""


@dataclasses.dataclass
class _Slot:
    """A column while the statement is applied. `was` is the column before the statement, or None if the statement adds the column."""

    column: DeclaredColumn
    was: DeclaredColumn | None


def altered(
    statement: AlterTable,
    schema: TableSchema,
    database_charset: str | None = None,
    session: StatementSession = NO_SESSION,
) -> Altered:
    """Returns the effect of an ALTER TABLE on `schema`. `database_charset` is the default charset of the table's database, or None if
    unknown. `session` is the session that ran the statement.

    Raises CannotFollowError if the statement names a column that `schema` does not have, adds a column that it has, or uses an unknown
    character set.
    """
    versioned = _versioned(statement, schema)
    schema = _seen(schema)
    statement = _with_own_defaults(statement, schema)
    charset, converted = _charsets(statement, schema.charset, database_charset)
    converts, of_columns = converted is not None, charset if converted is None else converted
    if converts:
        statement = _of_table_charset(statement)
    slots = _kept(statement, schema, session, of_columns, converts)
    additions = _added_in_order(statement, schema, slots, of_columns, session)
    key = _key(statement, schema, slots)
    columns = tuple(slot.column for slot in slots)
    required = (*key, *columns_in_period(statement, schema, columns))
    columns = tuple(in_key(column, required) for column in columns)
    engine = kept_engine(statement.engine) if statement.engine else schema.engine
    comment = schema.comment if statement.comment is None else statement.comment
    after = dataclasses.replace(schema, charset=charset, columns=columns, key=key, engine=engine, comment=comment)
    fills, unknown = _fills(additions, session)
    names = {column.name: slot.was.name for column, slot in zip(columns, slots, strict=True) if slot.was}
    alterations = difference(schema, after, names, strict=statement.strict)
    after = with_row_times(after) if versioned else after
    unknown = unknown or why_rewritten(_changed(statement, slots, columns), session, converts=converts)
    unknown = unknown or _why_keyless(schema, after)
    return Altered(schema=after, fills=fills, alterations=alterations, unknown=unknown)


def _why_keyless(before: TableSchema, after: TableSchema) -> str:
    if before.key or not after.key:
        return ""
    return "the statement adds a key, but the lake has one row per row image, because the table had no key before"


def _changed(
    statement: AlterTable, slots: list[_Slot], columns: tuple[DeclaredColumn, ...]
) -> tuple[ChangedColumn, ...]:
    """Returns the columns that the table had before the statement and still has. `columns` are the final columns of `slots`."""
    definitions = {item.name.lower(): item.definition for item in statement.items if isinstance(item, ChangeColumn)}
    return tuple(
        ChangedColumn(slot.was, column, definitions.get(slot.was.name.lower()))
        for slot, column in zip(slots, columns, strict=True)
        if slot.was is not None
    )


def _versioned(statement: AlterTable, schema: TableSchema) -> bool:
    """Returns whether the table has system versioning after the statement. Only DROP SYSTEM VERSIONING ends the versioning. Dropping the
    columns ROW START and ROW END does not.
    """
    found = any(column.generated in {ROW_END, HIDDEN_END} for column in schema.columns)
    for item in statement.items:
        found = item.versioned if isinstance(item, SetVersioning) else found
    return found


def difference(
    before: TableSchema, after: TableSchema, names: dict[str, str] | None = None, *, strict: bool = True
) -> tuple[Alteration, ...]:
    """Returns the alterations that lead from the schema `before` to the schema `after`. `names` has new column name → old column name, for
    columns that both schemas have. Without `names`, columns with equal names are the same column.

    `strict` tells whether the session that ran the statement was in strict mode. Outside strict mode, the server replaces NULL in a column
    that becomes NOT NULL, so the change counts as CONVERT. Hidden columns are ignored, because the lake does not have them.
    """
    before, after = _seen(before), _seen(after)
    if names is None:
        there = {column.name.lower(): column.name for column in before.columns}
        names = {column.name: there[column.name.lower()] for column in after.columns if column.name.lower() in there}
    return (
        *(
            Alteration(kind=AlterationKind.DROP, column=column.name, old_type=column.type)
            for column in before.columns
            if column.name not in names.values()
        ),
        *(Alteration(kind=AlterationKind.RENAME, column=old, new_name=new) for new, old in names.items() if new != old),
        *_type_changes(before, after, names, strict),
        *(
            Alteration(kind=AlterationKind.ADD, column=column.name, new_type=column.type)
            for column in after.columns
            if column.name not in names
        ),
        *_key_change(before, after, names),
    )


def _seen(schema: TableSchema) -> TableSchema:
    return dataclasses.replace(schema, columns=tuple(each for each in schema.columns if each.generated not in HIDDEN))


def followed(before: TableSchema | None, after: TableSchema) -> Altered:
    """Returns the effect if the schema `after` replaces `before` without an ALTER TABLE: a schema change tool renamed its copy of the
    table, or an operator gave a schema. If `before` is None (unknown), the effect has no alterations.

    Existing rows get the default of a new column, because a schema change tool copies the rows without a value for the new column. A schema
    that an operator gave is treated in the same way.
    """
    if before is None:
        return Altered(schema=after)
    alterations = difference(before, after)
    added = {each.column for each in alterations if each.kind is AlterationKind.ADD}
    fills, unknown = [], ""
    for column in after.columns:
        if column.name not in added:
            continue
        if not column.default or column.generated:
            unknown = f"rows that existed got values in the column {column.name} that the binlog does not contain"
        elif column.default[0] is not None:
            fills.append((column.name, column.default[0]))
    there = {column.name.lower(): column for column in before.columns}
    both = [ChangedColumn(there[each.name.lower()], each, None) for each in after.columns if each.name.lower() in there]
    unknown = unknown or why_rewritten(both, NO_SESSION, converts=False) or _why_keyless(before, after)
    return Altered(schema=after, fills=tuple(fills), alterations=alterations, unknown=unknown)


def _type_changes(before: TableSchema, after: TableSchema, names: dict[str, str], strict: bool) -> Iterator[Alteration]:
    old_columns = {column.name: column for column in before.columns}
    for new in after.columns:
        old = old_columns.get(names.get(new.name, ""))
        if old is None:
            continue
        kind, shown = type_change(old, new), (old.type, new.type)
        if not strict and old.nullable and not new.nullable:
            kind, shown = AlterationKind.CONVERT, (f"{old.type} null", f"{new.type} not null")
        elif old.type == new.type:
            shown = (_with_set(old), _with_set(new))
        if kind is not None:
            yield Alteration(kind=kind, column=new.name, old_type=shown[0], new_type=shown[1])


def _with_set(column: DeclaredColumn) -> str:
    return f"{column.type} character set {column.charset}"


def _key_change(before: TableSchema, after: TableSchema, names: dict[str, str]) -> Iterator[Alteration]:
    now = {old: new for new, old in names.items()}
    if tuple(now.get(name, name) for name in before.key) != after.key:
        yield Alteration(kind=AlterationKind.KEY, old_type=", ".join(before.key), new_type=", ".join(after.key))


def _charsets(statement: AlterTable, default: str, database_charset: str | None) -> tuple[str, str | None]:
    """Returns the default charset of the table after the statement, and the charset to which the statement converts all columns, or None.
    CONVERT TO also changes the table's default charset, unless the statement names another default (MariaDB).
    """
    items = [item for item in statement.items if isinstance(item, SetCharset)]
    named = {item.converts: item.charset or database_charset or "" for item in items}
    converted = named.get(True)
    return named.get(False, default if converted is None else converted), converted


def _of_table_charset(statement: AlterTable) -> AlterTable:
    """Returns the statement without the charsets in its column definitions, because CONVERT TO CHARACTER SET overrides them. The charset
    `binary` remains, because it makes the column a byte string.
    """
    items = (
        dataclasses.replace(item, definition=dataclasses.replace(item.definition, charset=None))
        if isinstance(item, AddColumn | ChangeColumn) and item.definition.charset != "binary"
        else item
        for item in statement.items
    )
    return dataclasses.replace(statement, items=tuple(items))


def _kept(
    statement: AlterTable, schema: TableSchema, session: StatementSession, charset: str, converts: bool
) -> list[_Slot]:
    """Returns the columns that the statement does not drop, with the statement's changes but in the old order. `_added_in_order` moves
    the columns afterwards.
    """
    dropped = {_found(schema, item.name, item.if_exists) for item in statement.items if isinstance(item, DropColumn)}
    changed = {
        _found(schema, item.name, item.if_exists): item for item in statement.items if isinstance(item, ChangeColumn)
    }
    others = [item for item in statement.items if isinstance(item, RenameColumn | SetVisible | SetDefault)]
    slots = []
    for column in schema.columns:
        if column.name in dropped:
            continue
        change = changed.get(column.name)
        now = _converted(column, charset) if converts else column
        if change is not None:
            now = declared_column(change.definition, charset, session)
        slots.append(_Slot(now, column))
    for item in others:
        name = _found(schema, item.name, if_exists=not isinstance(item, SetVisible) and item.if_exists)
        for slot in slots:
            if slot.was is not None and slot.was.name == name:
                slot.column = _touched(slot.column, item)
    return slots


def _with_own_defaults(statement: AlterTable, schema: TableSchema) -> AlterTable:
    """Moves each SET DEFAULT and DROP DEFAULT into the definition of its column, if the statement itself adds or moves this column. Returns
    the changed statement. In MariaDB, such an item applies to the new definition. With IF EXISTS, the item applies only if the table had a
    column of this name before the statement.
    """
    there = {column.name.lower() for column in schema.columns}
    inserted = [item for item in statement.items if _is_inserted(item)]
    left = there - {item.name.lower() for item in statement.items if isinstance(item, DropColumn)}
    left -= {item.name.lower() for item in inserted if isinstance(item, ChangeColumn)}
    names = {item.definition.name.lower() for item in inserted} - left
    own = {
        item.name.lower(): item
        for item in statement.items
        if isinstance(item, SetDefault) and item.name.lower() in (names & there if item.if_exists else names)
    }
    items: list[AlterItem] = []
    for item in statement.items:
        if _is_inserted(item) and (found := own.get(item.definition.name.lower())):
            definition = dataclasses.replace(item.definition, default=found.default)
            items.append(dataclasses.replace(item, definition=definition))
        elif item not in own.values():
            items.append(item)
    return dataclasses.replace(statement, items=tuple(items))


def _is_inserted(item: AlterItem) -> TypeGuard[AddColumn | ChangeColumn]:
    """Returns whether the item adds a column, or moves a column to another place."""
    return isinstance(item, AddColumn) or (isinstance(item, ChangeColumn) and item.definition.after is not None)


def _touched(column: DeclaredColumn, item: RenameColumn | SetVisible | SetDefault) -> DeclaredColumn:
    if isinstance(item, RenameColumn):
        return dataclasses.replace(column, name=item.new_name)
    if isinstance(item, SetDefault):
        definition = ColumnDefinition(column.name, declared_type(column.type), column.charset, default=item.default)
        if item.default is None and column.default and not column.nullable:
            # After DROP DEFAULT, a NOT NULL column is like a column that was declared without DEFAULT. The zero value of its type is
            # stored as the default, because `rewritten_values` assumes that a NOT NULL column without a known default is AUTO_INCREMENT.
            return dataclasses.replace(column, default=known_default(dataclasses.replace(definition, nullable=False)))
        return dataclasses.replace(column, default=() if item.default is None else known_default(definition))
    return dataclasses.replace(column, visible=item.visible)


def _found(schema: TableSchema, name: str, if_exists: bool) -> str | None:
    """Returns the column's name in the spelling of the schema. If the schema does not have the column, returns None if `if_exists` is
    True, and raises CannotFollowError if it is False.
    """
    for column in schema.columns:
        if same_name(column.name, name):
            return column.name
    if if_exists:
        return None
    raise CannotFollowError(
        SCHEMA_MISMATCH, f"the statement alters the column {name}, which the schema history does not have"
    )


def _added_in_order(
    statement: AlterTable, schema: TableSchema, slots: list[_Slot], charset: str, session: StatementSession
) -> list[tuple[DeclaredColumn, ColumnDefinition]]:
    """Inserts added columns into `slots`, and moves the columns that the statement moves. Returns the added columns with their
    definitions.
    """
    additions = []
    for item in statement.items:
        if isinstance(item, AddColumn):
            definition, was = item.definition, None
            if definition.if_not_exists and any(same_name(definition.name, column.name) for column in schema.columns):
                continue  # The server looks into the table before the statement, even if the statement drops or renames the column.
            if any(same_name(definition.name, slot.column.name) for slot in slots):
                if definition.if_not_exists:
                    continue
                raise CannotFollowError(
                    SCHEMA_MISMATCH,
                    f"the statement adds the column {definition.name}, which the schema history already has",
                )
        elif isinstance(item, ChangeColumn) and item.definition.after is not None:
            name = _found(schema, item.name, item.if_exists)
            if name is None:
                continue
            definition, was = item.definition, next(column for column in schema.columns if column.name == name)
        else:
            continue
        slot = _Slot(declared_column(definition, charset, session), was)
        if was is not None:
            slots[:] = [each for each in slots if each.was is not was]
        slots.insert(_index(slots, definition), slot)
        if was is None:
            additions.append((slot.column, stored(definition, slot.column.charset)))
    return additions


def _index(slots: list[_Slot], definition: ColumnDefinition) -> int:
    if definition.after is None:
        return len(slots)
    if not definition.after:
        return 0
    for index, slot in enumerate(slots):
        if same_name(slot.column.name, definition.after):
            return index + 1
    reason = (
        f"the statement puts the column {definition.name} after {definition.after}, which the schema history does "
        "not have"
    )
    raise CannotFollowError(SCHEMA_MISMATCH, reason)


def _key(statement: AlterTable, schema: TableSchema, slots: list[_Slot]) -> tuple[str, ...]:
    """Returns the primary key after the statement. Returns () if the statement only drops the key. If it neither drops nor sets the key,
    returns the old key with the new names of its columns and without dropped columns.
    """
    # The key refers to columns by name. So after DROP a, ADD a, the key contains the new column a.
    now = {slot.column.name.lower(): slot.column.name for slot in slots if slot.was is None}
    now |= {slot.was.name.lower(): slot.column.name for slot in slots if slot.was is not None}
    key = tuple(now[name.lower()] for name in schema.key if name.lower() in now)
    for item in statement.items:
        if isinstance(item, DropKey):
            key = ()
    columns = tuple(slot.column for slot in slots)
    for item in statement.items:
        if schema.key and _only_if_absent(item):
            continue
        if isinstance(item, SetKey):
            key = named_as_declared(item.columns, columns)
        elif isinstance(item, AddColumn | ChangeColumn) and item.definition.primary:
            key = named_as_declared((item.definition.name,), columns)
    return key


def _only_if_absent(item: AlterItem) -> bool:
    """Returns whether an item sets the primary key only if the table has none before the statement (MariaDB). If the table has one, the
    item sets no key, even if the statement drops the old key. For PRIMARY KEY in a column definition, the IF EXISTS or IF NOT EXISTS of the
    column decides.
    """
    match item:
        case SetKey():
            return item.if_not_exists
        case AddColumn():
            return item.definition.if_not_exists
        case ChangeColumn():
            return item.if_exists
    return False


def _converted(column: DeclaredColumn, charset_name: str) -> DeclaredColumn:
    """Returns a column after ALTER TABLE … CONVERT TO CHARACTER SET. A text type becomes a larger text type if the new charset needs more
    bytes per character. Byte strings do not change. Raises CannotFollowError if a charset is unknown, or if a label of an ENUM or SET
    cannot be converted.
    """
    declared = declared_type(column.type)
    if not declared.has_charset or column.charset == "binary":
        return column
    charset = charset_of_name(column.charset)
    if charset is None:
        raise CannotFollowError(SCHEMA_UNKNOWN, f"the character set {column.charset!r} is not known")
    declared = dataclasses.replace(declared, labels=_relabelled(column, declared.labels, charset_name))
    if declared.base in _TEXT_PREFIX_BYTES:
        bytes_max = (1 << 8 * _TEXT_PREFIX_BYTES[declared.base]) - 1
        declared = dataclasses.replace(declared, base="text", length=bytes_max // charset.bytes_max)
    declared, name = with_charset(declared, charset_name)
    return dataclasses.replace(column, type=declared.text, charset=name)


def _relabelled(column: DeclaredColumn, labels: tuple[str, ...], charset_name: str) -> tuple[str, ...]:
    """Returns the labels of an ENUM or SET after ALTER TABLE … CONVERT TO CHARACTER SET. The servers do not convert labels: they keep a
    label's bytes, and interpret the bytes in the new charset.
    """
    if column.charset == charset_name:
        return labels
    try:
        relabelled = tuple(raw_in(as_bytes(label, column.charset), charset_name) for label in labels)
    except LiteralUnknownError as error:
        relabelled, reason = (), str(error)
    else:
        reason = (
            "a server truncates a label at its first zero byte" if any("\0" in label for label in relabelled) else ""
        )
    if reason:
        what = f"the labels of {column.name} cannot be converted to {charset_name}"
        raise CannotFollowError(SCHEMA_UNKNOWN, f"{what}: {reason}")
    return relabelled


def _fills(additions: list[tuple[DeclaredColumn, ColumnDefinition]], session: StatementSession) -> tuple[Fills, str]:
    """Returns the values that existing rows get in the added columns, and a sentence about an unknown value, or "" if all values are
    known.
    """
    fills, unknown = [], ""
    for column, definition in additions:
        try:
            value = _fill(column, definition, session)
        except InitialValueUnknownError as error:
            unknown = f"existing rows got values in the column {column.name} that the binlog does not contain: {error}"
            continue
        if value is not None:
            fills.append((column.name, value))
    return tuple(fills), unknown


def _fill(column: DeclaredColumn, definition: ColumnDefinition, session: StatementSession) -> str | None:
    made = dataclasses.replace(definition, type=declared_type(column.type), charset=column.charset)
    return initial_value(dataclasses.replace(made, nullable=column.nullable), session)
