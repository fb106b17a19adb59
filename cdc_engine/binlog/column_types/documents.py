"""JSON of MySQL (binary form, JSONB) as the text that the server prints. MariaDB's JSON is a longtext and comes as such."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cdc_engine.binlog.column_types import transcoding
from cdc_engine.binlog.column_types.entry import AnyArray, ColumnType, ValueRefusedError, Values, column_type
from cdc_engine.binlog.documents import jsonb
from cdc_engine.binlog.type_codes import TypeCode
from cdc_engine.contracts import Column


@column_type(TypeCode.JSON)
def json(column: Column) -> ColumnType:
    return ColumnType(prefix_bytes=column.metadata or 4, arrow=pa.string(), spark="string", finish=_documents)


def _documents(values: Values) -> AnyArray:
    """Once a distinct document, not once a row."""
    distinct: Any = transcoding.copied(values, pa.binary())[0].dictionary_encode()
    texts: list[str] = []
    for index, document in enumerate(distinct.dictionary.to_pylist()):
        try:
            texts.append(jsonb.render(document))
        except jsonb.JsonFormatError as error:
            row = distinct.indices.index(index).as_py()
            raise ValueRefusedError(row, f"is not a JSON document of MySQL: {error}") from None
    return pa.array(texts, pa.string()).take(distinct.indices)
