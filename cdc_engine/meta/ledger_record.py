"""Converts a `Ledger` to and from the text of meta.json, whose format is in docs/architecture.md. Pure. `stored_ledger` stores the text.

Refuses unknown keys, because the next write of the ledger would lose their values. Also refuses missing keys and values of another type.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from sluice.cdc_engine.contracts import ClientIdentity, Consumer, OutstandingBatch, StoppedTable
from sluice.cdc_engine.meta.ledger import LEDGER_ID_CHARS, GroupConsumer, Ledger
from sluice.cdc_engine.position import GroupPosition, Position
from sluice.cdc_engine.states import TableState

FORMAT = 4
GROUP = "group_consumers"
AGAIN = "again_up_to"

Value = TypeVar("Value")


def ledger_to_text(ledger: Ledger) -> str:
    """Returns the text of meta.json."""
    record: dict[str, Any] = {"format": FORMAT, **dataclasses.asdict(ledger)}
    record["clients"] = [{"client_id": each.client_id, "filter": each.filter} for each in ledger.clients]
    record[GROUP] = [{**dataclasses.asdict(each), "cursor": each.cursor.to_json()} for each in ledger.group_consumers]
    for each in record["stopped_tables"]:
        if not each["order_key"]:
            # Leaves out an `order_key` of 0, so that earlier versions of Sluice, which refuse unknown fields, can read the ledger.
            del each["order_key"]
    for each in (*record["consumers"], *record[GROUP]):
        if not each["identity"]:
            # Leaves out an empty identity, so that earlier versions of Sluice, which refuse unknown fields, can read the ledger.
            del each["identity"]
    if not record[GROUP]:
        # Leaves out the empty list of a group's consumers, so that earlier versions of Sluice, which refuse unknown fields, can read the
        # ledger.
        del record[GROUP]
    if record[AGAIN] is None:
        # Leaves out the position, for the same reason.
        del record[AGAIN]
    return json.dumps(record, indent=1) + "\n"


def ledger_from_text(text: str, destination: str) -> Ledger:
    """Parses the text of `ledger_to_text`. Raises ValueError with the reason if the text is not a valid ledger."""
    record = json.loads(text)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else None
        raise ValueError(f"the ledger has format {found!r}, and this version of Sluice reads format {FORMAT}")
    del record["format"]
    fields = _checked(Ledger, {GROUP: [], AGAIN: None, **record})
    ledger = Ledger(
        **{
            **fields,
            "cursor": _position(fields["cursor"]) if fields["cursor"] is not None else None,
            "clients": tuple(_client(each, destination) for each in fields["clients"]),
            # Drops batches without a path. Earlier versions recorded a batch before it was staged. No run has got such a batch.
            "outstanding": tuple(itertools.takewhile(_is_staged, map(_outstanding, fields["outstanding"]))),
            "stopped_tables": tuple(_stopped(each) for each in fields["stopped_tables"]),
            "given_up": _position(fields["given_up"]) if fields["given_up"] is not None else None,
            AGAIN: _position(fields[AGAIN]) if fields[AGAIN] is not None else None,
            "consumers": tuple(_consumer(each) for each in fields["consumers"]),
            GROUP: tuple(_group_consumer(each) for each in fields[GROUP]),
        }
    )
    _check_order(ledger)
    return ledger


def _check_order(ledger: Ledger) -> None:
    """Raises ValueError if the ledger has values that no transition produces. Another program may have changed the record."""
    if len(ledger.ledger_id) != LEDGER_ID_CHARS:
        raise ValueError(f"the ledger_id {ledger.ledger_id!r} does not have {LEDGER_ID_CHARS} characters")
    if any(each.ledger_id != ledger.ledger_id for each in ledger.outstanding):
        raise ValueError("the ledger has batches of another ledger")
    ids = [*(each.batch_id for each in ledger.outstanding), ledger.next_batch_id]
    deliveries = [*(each.delivery for each in ledger.outstanding), ledger.next_delivery]
    if any(later <= earlier for numbers in (ids, deliveries) for earlier, later in itertools.pairwise(numbers)):
        raise ValueError(f"the batch ids {ids} or deliveries {deliveries} do not ascend")


def _client(record: Any, destination: str) -> ClientIdentity:
    if not isinstance(record, dict):
        raise ValueError("an item of `clients` is not a JSON object")
    return ClientIdentity(**_checked(ClientIdentity, {**record, "destination": destination}))


def _consumer(record: Any) -> Consumer:
    fields = _checked(Consumer, _with_identity(record))
    return Consumer(**{**fields, "cursor": _position(fields["cursor"])})


def _group_consumer(record: Any) -> GroupConsumer:
    fields = _checked(GroupConsumer, _with_identity(record))
    cursor = _checked(GroupPosition, fields["cursor"], {"members": dict})
    members = tuple((str(name), _position(each)) for name, each in sorted(cursor["members"].items()))
    return GroupConsumer(**{**fields, "cursor": GroupPosition(**{**cursor, "members": members})})


def _with_identity(record: Any) -> Any:
    return {"identity": "", **record} if isinstance(record, dict) else record


def _outstanding(record: Any) -> OutstandingBatch:
    if not isinstance(record, dict):
        raise ValueError("an item of `outstanding` is not a JSON object")
    # Adds `appendable` and `first_end`, which ledgers of earlier versions do not have.
    fields = _checked(OutstandingBatch, {"appendable": False, "first_end": -1, **record})
    if not all(isinstance(table, str) for table in fields["tables"]):
        raise ValueError("an item of a batch's `tables` is not a string")
    positions = {
        "start": _position(fields["start"]),
        "end": _position(fields["end"]),
        "tables": tuple(fields["tables"]),
    }
    batch = OutstandingBatch(**{**fields, **positions})
    return dataclasses.replace(batch, first_end=batch.end.order_key) if batch.first_end < 0 else batch


def _is_staged(batch: OutstandingBatch) -> bool:
    return bool(batch.path)


def _stopped(record: Any) -> StoppedTable:
    fields = _checked(StoppedTable, {"order_key": 0, **record} if isinstance(record, dict) else record)
    return StoppedTable(**{**fields, "state": TableState(fields["state"]), "position": _position(fields["position"])})


def _position(record: Any) -> Position:
    return Position(**_checked(Position, record))


# Annotation of a field → type of its JSON value. A tuple is a list in JSON. Fields with other annotations, such as positions, are JSON
# objects.
JSON_TYPES = {
    "int": int,
    "str": str,
    "bool": bool,
    "TableState": str,
}
NO_OTHERS: Mapping[str, type] = {}


def _checked(kind: type[Value], record: Any, others: Mapping[str, type] = NO_OTHERS) -> dict[str, Any]:
    """Checks a JSON object against the dataclass `kind`, and returns a copy of the object. The object must have exactly the fields of
    `kind`, each with the JSON type that belongs to the field's annotation. For the fields in `others`, the types in `others` count instead.
    Raises ValueError if the object differs.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{kind.__name__} is not a JSON object")
    annotations = {field.name: str(field.type) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if record.keys() != annotations.keys():
        raise ValueError(f"{kind.__name__} has the keys {sorted(record)}, not {sorted(annotations)}")
    for name, annotation in annotations.items():
        expected = others.get(name) or (list if annotation.startswith("tuple") else JSON_TYPES.get(annotation, dict))
        optional = annotation.endswith("| None") and record[name] is None
        if not optional and type(record[name]) is not expected:
            raise ValueError(f"{kind.__name__}.{name} is {record[name]!r}, not of type {expected.__name__}")
    return dict(record)
