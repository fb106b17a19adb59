"""Defines the messages of Canal's protocol (CanalProtocol.proto, EntryProtocol.proto) as protobuf classes.

The classes are created at import from the table SHAPES. They have a descriptor pool of their own, so that they do not clash with the
classes of another Canal client in the same process. Enumerations are plain integers, which have the same encoding.
"""

from __future__ import annotations

import enum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from sluice.canal_client.errors import CanalProtocolError

PACKAGE = "com.alibaba.otter.canal.protocol"
# Name of a message → its fields as name:number:type. A repeated field has "*" before its type.
SHAPES = {
    "Packet": "magic_number:1:int32 version:2:int32 type:3:int32 compression:4:int32 body:5:bytes",
    "Handshake": "communication_encoding:1:string seeds:2:bytes supported_compressions:3:int32",
    "ClientAuth": "username:1:string password:2:bytes net_read_timeout:3:int32 net_write_timeout:4:int32 "
    "destination:5:string client_id:6:string filter:7:string start_timestamp:8:int64",
    "Ack": "error_code:1:int32 error_message:2:string",
    "ClientAck": "destination:1:string client_id:2:string batch_id:3:int64",
    "Sub": "destination:1:string client_id:2:string filter:7:string",
    "Get": "destination:1:string client_id:2:string fetch_size:3:int32 timeout:4:int64 unit:5:int32 auto_ack:6:bool",
    "Messages": "batch_id:1:int64 messages:2:*bytes",
    "ClientRollback": "destination:1:string client_id:2:string batch_id:3:int64",
    "Pair": "key:1:string value:2:string",
    "Entry": "header:1:Header entryType:2:int32 storeValue:3:bytes",
    "Header": "version:1:int32 logfileName:2:string logfileOffset:3:int64 serverId:4:int64 serverenCode:5:string executeTime:6:int64 "
    "sourceType:7:int32 schemaName:8:string tableName:9:string eventLength:10:int64 eventType:11:int32 props:12:*Pair gtid:13:string",
    "Column": "index:1:int32 sqlType:2:int32 name:3:string isKey:4:bool updated:5:bool isNull:6:bool props:7:*Pair value:8:string "
    "length:9:int32 mysqlType:10:string",
    "RowData": "beforeColumns:1:*Column afterColumns:2:*Column props:3:*Pair",
    "RowChange": "tableId:1:int64 eventType:2:int32 isDdl:10:bool sql:11:string rowDatas:12:*RowData props:13:*Pair "
    "ddlSchemaName:14:string",
    "TransactionBegin": "executeTime:1:int64 transactionId:2:string props:3:*Pair threadId:4:int64",
    "TransactionEnd": "executeTime:1:int64 transactionId:2:string props:3:*Pair",
}


class PacketType(enum.IntEnum):
    HANDSHAKE = 1
    CLIENTAUTHENTICATION = 2
    ACK = 3
    SUBSCRIPTION = 4
    UNSUBSCRIPTION = 5
    GET = 6
    MESSAGES = 7
    CLIENTACK = 8
    CLIENTROLLBACK = 12


class EntryType(enum.IntEnum):
    TRANSACTIONBEGIN = 1
    ROWDATA = 2
    TRANSACTIONEND = 3


class EventType(enum.IntEnum):
    """The type of a row change or statement. Types that are not listed become QUERY."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    CREATE = 4
    ALTER = 5
    ERASE = 6
    QUERY = 7
    TRUNCATE = 8
    RENAME = 9
    CINDEX = 10
    DINDEX = 11
    XACOMMIT = 13
    XAROLLBACK = 14

    @classmethod
    def _missing_(cls, _value: object) -> EventType:
        return cls.QUERY


def _made() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="canal.proto", package=PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, shape in SHAPES.items():
        message = file.message_type.add(name=name)
        for field in shape.split():
            field_name, number, kind = field.split(":")
            made = message.field.add(name=field_name, number=int(number))
            made.label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind in SHAPES:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                made.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in SHAPES}


_classes = _made()
Packet, Handshake, ClientAuth, Ack, ClientAck, Sub, Get, Messages, ClientRollback = (
    _classes[name]
    for name in ("Packet", "Handshake", "ClientAuth", "Ack", "ClientAck", "Sub", "Get", "Messages", "ClientRollback")
)
Entry, RowChange, TransactionBegin, TransactionEnd = (
    _classes[name] for name in ("Entry", "RowChange", "TransactionBegin", "TransactionEnd")
)


def row_change(entry: Any) -> Any:
    """Returns the RowChange of an entry with rows or a statement. Raises CanalProtocolError if the entry has none."""
    try:
        return RowChange.FromString(entry.storeValue)
    except DecodeError as error:
        raise CanalProtocolError(
            "the server sent an Entry without a RowChange of Canal's protocol: check which server listens at the client's host and port"
        ) from error
