"""Decides which changes of a table's schema the lake follows, and how the lake follows them. The decision depends on the table's policy,
which has a setting for each kind of change, and on the approvals of operators. Pure functions.

The module `history.effects` calls `decide` for every statement that affects the lake. The settings of a policy are:
  apply, keep, new_column, rewrite, ignore   what the lake does (PLANS lists the settings of each kind of change and their effects)
  hold                                       the table stops in DDL_HELD until an operator approves one of the settings above
  stop                                       the table stops in DDL_REFUSED
An approval is for one statement, and affects only changes whose setting is `hold`.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from sluice.batch_manifest.values import Alteration, AlterationKind
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, TableSchema

HOLD, STOP = "hold", "stop"
TRUNCATE, DROP_TABLE, DROP_PARTITION = "truncate", "drop_table", "drop_partition"

# Kind of change (a key of PLANS) → setting. A policy may also have the table's setting `zero_dates` (ZERO_DATES).
Policy = Mapping[str, str]
ZERO_DATES, TEXT = "zero_dates", "text"
_DATES = re.compile(r"(?:date|datetime|timestamp)(?:\(\d\))?(?!\w)")
# Kind of change → setting → what the lake does.
PLANS: Mapping[str, Mapping[str, str]] = {
    "add": {"apply": "the column is added"},
    "drop": {
        "keep": "the column and its values stay; rows written later have NULL in the column",
        "apply": "the column is dropped, with its values (Delta column mapping)",
    },
    "rename": {
        "apply": "the column is renamed (Delta column mapping, which readers must support)",
        "new_column": (
            "a column of the new name is added with the values of the old column. The old column stays, and is "
            "NULL in rows written later"
        ),
    },
    "widen": {
        "apply": (
            "the column's type is widened in place (Delta type widening, which readers must support), where Delta "
            "supports this change; otherwise the column is rewritten"
        ),
        "rewrite": (
            "the column is rewritten in the wider type (with Delta column mapping only if the table already uses it, has "
            "constraints or generated columns, or the statement also renames or drops columns)"
        ),
    },
    "convert": {
        "apply": (
            "Spark converts the existing values; a value that cannot be converted becomes NULL, and some values "
            "may differ from the source"
        ),
        "new_column": (
            "a new column with the new type replaces the column, and is NULL in existing rows; the old "
            "values stay in the column NAME_until_POSITION"
        ),
    },
    "key": {"apply": "later changes are merged by the new key; existing rows stay unchanged"},
    TRUNCATE: {"apply": "all rows are deleted", "ignore": "the rows stay"},
    DROP_TABLE: {
        "ignore": (
            "the table and its rows stay as they are; if the source creates the table again, the rows are deleted first"
        ),
        "apply": "all rows are deleted; the table stays",
    },
    DROP_PARTITION: {
        "ignore": "the rows of the partition stay; re-snapshot the table afterwards (`sluice snapshot start`) to delete them"
    },
}
DEFAULTS: Policy = {
    "add": "apply",
    "drop": "keep",
    "rename": HOLD,
    # `rewrite` is the default, because the library `deltalake`, which Sluice itself uses, cannot read a table after type widening
    # (docs/readers.md).
    "widen": "rewrite",
    "convert": HOLD,
    "key": HOLD,
    TRUNCATE: "apply",
    DROP_TABLE: "ignore",
    DROP_PARTITION: HOLD,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One of the changes that a statement makes to a table. `kind` is a key of PLANS and of the policy, and `what` describes the change for
    an operator. `alteration` is the alteration of the lake's table, or None if the change affects only rows (TRUNCATE, DROP TABLE, DROP
    PARTITION).
    """

    kind: str
    what: str
    alteration: Alteration | None = None

    @property
    def plans(self) -> Mapping[str, str]:
        return PLANS[self.kind]


class PolicyAnswer(enum.Enum):
    FOLLOW = "follow"
    HELD = TableState.DDL_HELD
    STOPPED = TableState.DDL_REFUSED


@dataclasses.dataclass(frozen=True)
class ChangeDecision:
    """The decision about a statement. If the lake follows the statement, `plans` has the plan for each item, and `alterations` has the
    changes of the lake's table in order, each with its plan. Otherwise both are empty.
    """

    verdict: PolicyAnswer
    plans: tuple[str, ...] = ()
    alterations: tuple[Alteration, ...] = ()


def decide(items: Sequence[Item], policy: Policy, approved: str = "") -> ChangeDecision:
    """Decides whether the lake follows the changes of one statement. `approved` is the plan that an operator approved for the statement,
    or empty.
    """
    plans = [policy[item.kind] for item in items]
    if STOP in plans:
        return ChangeDecision(PolicyAnswer.STOPPED)
    if approved:
        plans = [_approved(item, approved) if plan == HOLD else plan for item, plan in zip(items, plans, strict=True)]
    if HOLD in plans:
        return ChangeDecision(PolicyAnswer.HELD)
    planned = [
        dataclasses.replace(item.alteration, plan=plan)
        for item, plan in zip(items, plans, strict=True)
        if item.alteration is not None
    ]
    return ChangeDecision(PolicyAnswer.FOLLOW, tuple(plans), tuple(planned))


def _approved(item: Item, plan: str) -> str:
    """Returns the plan for a change with the setting `hold` after an operator's approval. If the kind of change does not have the approved
    plan, returns `apply` if the kind has this plan, otherwise the kind's first plan.
    """
    return plan if plan in item.plans else "apply" if "apply" in item.plans else next(iter(item.plans))


def choices(items: Sequence[Item], policy: Policy) -> tuple[str, ...]:
    """Returns the plans that an operator can approve for a statement that is held."""
    for_approval = [item for item in items if policy[item.kind] == HOLD]
    return tuple(dict.fromkeys(plan for item in for_approval for plan in item.plans))


def items_of(alterations: Sequence[Alteration]) -> list[Item]:
    """Returns the changes that affect the lake. A WIDEN that does not change the lake's type is left out."""
    return [
        Item(kind=each.kind.value, what=described(each), alteration=each)
        for each in alterations
        if each.kind is not AlterationKind.WIDEN or lake_type(each.old_type) != lake_type(each.new_type)
    ]


def alterations_of(items: Iterable[Item]) -> tuple[Alteration, ...]:
    return tuple(item.alteration for item in items if item.alteration is not None)


def why_reprinted(alterations: Iterable[Alteration], policy: Policy) -> str:
    """Returns a sentence that names a column of dates whose existing values the lake stores as text that the new type prints in another
    form, or "" if there is no such column. The lake stores dates as text if `zero_dates` is text.
    """
    for each in alterations if policy.get(ZERO_DATES) == TEXT else ():
        old, new = _DATES.match(each.old_type), _DATES.match(each.new_type)
        if old and new and old[0] != new[0]:
            return (
                f"with `zero_dates: text`, the lake stores the values of the column {each.column} as text, and the new type {new[0]} "
                f"prints existing values in another form than {old[0]}"
            )
    return ""


def described(alteration: Alteration) -> str:
    """Describes an alteration for an operator."""
    match alteration.kind:
        case AlterationKind.ADD:
            return f"add {alteration.column} {alteration.new_type}".rstrip()
        case AlterationKind.DROP:
            return f"drop {alteration.column} {alteration.old_type}".rstrip()
        case AlterationKind.RENAME:
            return f"rename {alteration.column} to {alteration.new_name}"
        case AlterationKind.KEY:
            return f"primary key ({alteration.old_type}) becomes ({alteration.new_type})"
        case _:
            return f"{alteration.kind.value} {alteration.column} {alteration.old_type} to {alteration.new_type}"


def lake_type(mysql_type: str) -> str:
    """Returns the Spark name of the type that a column with this declared type has in the lake. If the lake does not support the declared
    type, returns the declared type.
    """
    text, _, charset = mysql_type.partition(" character set ")
    from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, type_of  # noqa: PLC0415  commands import no kernels

    try:
        return type_of(DeclaredColumn(name="", type=text, charset=charset).column()).spark
    except (TypeUnsupportedError, ValueError):
        return mysql_type


# ── a destination's decisions ──


@dataclasses.dataclass(frozen=True, kw_only=True)
class PendingChange:
    """A statement that waits for an operator's approval. `order_key` and `position` are at the end of the statement's event."""

    destination: str
    database: str
    table: str
    order_key: int
    position: str
    statement: str
    items: tuple[Item, ...]
    choices: tuple[str, ...]

    @property
    def reason(self) -> str:
        """The text for an operator, as a Markdown list: the statement, what each plan would do, and the command by which the operator
        decides.
        """
        lines = [f"`{self.statement}` at {self.position} waits for review."]
        for item in self.items:
            lines += [f"- {item.what}", *(f"    - `{plan}`: {meaning}" for plan, meaning in item.plans.items())]
        table = shlex.quote(f"{self.database}.{self.table}")
        command = f"sluice schema approve {self.destination or 'DESTINATION'} {table}"
        return "\n".join([*lines, f"- to decide: `{command} --plan {'|'.join(self.choices)}`"])


def _wary(_database: str, _table: str) -> Policy:
    return {kind: "apply" if kind in {"add", TRUNCATE} else STOP for kind in PLANS}


def _no_approval(_database: str, _table: str, _order_key: int) -> str:
    return ""


def _unresolved(_database: str, _table: str, _order_key: int, _reason: str, _position: str) -> TableSchema | None:
    return None


def _unnoted(_pending: PendingChange) -> None:
    """Does nothing. Used for a schema history if no operator reviews its pending schema changes."""


def _nothing_forgotten(_order_key: int) -> None:
    """Removes nothing. Used by a schema history that no operator reviews."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaDecisions:
    """The callbacks through which the schema history gets policies and approvals, and reports statements that wait for approval. With the
    defaults, the lake follows ADD and TRUNCATE, any other change stops the table, and nothing is reported.

    - `policy(database, table)`: the policy of a table.
    - `approved(database, table, order_key)`: the plan that an operator approved for the statement with this order key, or empty.
    - `note(pending)`: reports a statement that waits for approval.
    - `resolved(database, table, order_key, reason, position)`: the schema that an operator gave for a table that stopped at the event
      with this order key, or None. `reason` is the reason of the stop. `position` is the position of the statement that stopped the
      table, or empty if the table stopped because its table map did not fit the schema.
    - `forget(order_key)`: removes approvals and schemas for statements before `order_key`, because the stream will not read these
      statements again.
    """

    destination: str = ""
    policy: Callable[[str, str], Policy] = _wary
    approved: Callable[[str, str, int], str] = _no_approval
    note: Callable[[PendingChange], None] = _unnoted
    resolved: Callable[[str, str, int, str, str], TableSchema | None] = _unresolved
    forget: Callable[[int], None] = _nothing_forgotten
