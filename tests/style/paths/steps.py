"""Lists the functions that a value passes: a row's change, a chunk of a snapshot, a backfill. `files` checks and counts them.

The paths are those of default settings: the store in memory, the ledger in files. The table has a key and is too large for a small
merge, so Spark merges it. The end of the batch is fixed when the batch is staged. If the batch is appendable, its run first takes it, and
the engine may stage it again (`HandOut.take`).

Only functions that carry or change the value are listed. Functions that read settings, log, or handle errors are not.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a path.

    - `file` and `function` name the function of the step. "A > B" are functions of one file, each of which calls the next one.
    - `does` says what the function does with the value.
    - `caller` is the function, of this or an earlier step, that calls the function. If it is empty, the last function of the step before
      calls it.
    - `bound` is for a caller that knows the function by another name: "file: name=value" is an argument or an assignment in `file`. The
      caller uses `name`, and `value` is the function, or something that the function uses.
    - `starts` says what calls the function, if no function before does: a thread, Dagster.
    """

    file: str
    function: str
    does: str
    caller: str = ""
    bound: str = ""
    starts: str = ""


PARSER = "cdc_engine/parser/stream/event_parser.py"
CONNECTION = "cdc_engine/parser/connection.py"
FRAMING = "cdc_engine/parser/scan/framing.py"
SCANNER = "cdc_engine/parser/scan/scanner.py"
KERNEL = "cdc_engine/parser/scan/kernel.py"
BLOCK_MAKER = "cdc_engine/parser/scan/block_maker.py"
SINK = "cdc_engine/sink/event_sink.py"
STORE = "cdc_engine/store/memory_store.py"
TIMELINE = "cdc_engine/store/timeline.py"
TICK = "orchestration/sensor/tick.py"
ENGINE = "cdc_engine/instance/engine/engine.py"
HAND_OUT = "cdc_engine/instance/batches/hand_out.py"
STAGER = "cdc_engine/staging/stager.py"
STREAM_BATCHES = "cdc_engine/instance/batches/stream_batches.py"
LEDGER = "cdc_engine/meta/ledger.py"
STORED_LEDGER = "cdc_engine/meta/stored_ledger.py"
STAGING = "cdc_engine/staging/staging.py"
DECODER = "cdc_engine/binlog/rows/decoder.py"
LOCATE = "cdc_engine/binlog/rows/locate.py"
NUMBERS = "cdc_engine/binlog/column_types/numbers.py"
TABLE_FILES = "cdc_engine/staging/table_files.py"
SEGMENT_WRITER = "cdc_engine/staging/segment_writer.py"
MANIFEST = "batch_manifest/file.py"
LOCATION = "orchestration/code_location.py"
PORTS = "orchestration/real_ports.py"
ASSETS = "orchestration/assets.py"
MERGE_RUN = "orchestration/run/merge_run.py"
SPARK_MERGE = "orchestration/run/spark_merge.py"
RUN_BATCH = "spark_jobs/batch/run_batch.py"
READ_BATCH = "spark_jobs/staged_files/read.py"
MERGE = "spark_jobs/merging/merge.py"
FOLD = "spark_jobs/merging/fold.py"
MERGE_SQL = "spark_jobs/merging/merge_sql.py"
SESSION = "spark_jobs/session.py"

STREAM = (
    Step(
        PARSER,
        "EventParser._read",
        "asks the connection for the next bytes of the binlog",
        starts="the parser's thread",
    ),
    Step(CONNECTION, "SourceConnection.receive_into", "receives bytes from the socket"),
    Step(PARSER, "EventParser._take", "passes the received bytes to the scan", "EventParser._read"),
    Step(FRAMING, "PacketFramer.received", "finds the complete packets in the bytes"),
    Step(
        SCANNER,
        "Scanner.feed > Scanner._fed > Scanner._events > Scanner._scan",
        "passes the packets to the scan's kernel, which finds the events",
    ),
    Step(KERNEL, "scan", "makes an index of the row events of captured tables, which stay in the buffer"),
    Step(
        BLOCK_MAKER,
        "BlockMaker.end_block > BlockMaker._block",
        "makes a block that consists of the buffer and the index",
        "Scanner._fed",
    ),
    Step(
        PARSER,
        "EventParser._accept",
        "passes the block to the sink, then moves the parser's position to the block's end",
        "EventParser._take",
    ),
    Step(
        SINK,
        "EventSink.accept > EventSink._accept > EventSink._put",
        "removes the row events of stopped tables, and copies the block if most of its buffer is unused",
    ),
    Step(
        STORE,
        "MemoryEventStore.put > MemoryEventStore._keep > MemoryEventStore._take > MemoryEventStore._append",
        "waits until the store's ring has space, and puts the block into the ring",
    ),
    Step(TIMELINE, "entry_in_memory", "makes the block's entry in the ring, which counts its transactions and events"),
)

HANDED_OUT = (
    Step(TICK, "Ticker._settle_and_hand_out", "requests the next batch from the engine", starts="the engine sensor"),
    Step(ENGINE, "Engine.hand_out", "executes the open requests of operators, then makes the next batch"),
    Step(
        HAND_OUT,
        "HandOut.next > HandOut._begin > HandOut._try_next > HandOut._stage_next > HandOut._record",
        "takes a batch from the store, stages it, and records it in the ledger",
    ),
    Step(STREAM_BATCHES, "StreamBatches.get", "takes the next changes from the store", "HandOut._stage_next"),
    Step(STORE, "MemoryEventStore.get", "takes complete transactions up to the limits of a batch"),
    Step(TIMELINE, "batch_end", "finds the transaction at which the batch ends"),
    Step(STORE, "MemoryEventStore._batch", "makes the batch of slices of the blocks", "MemoryEventStore.get"),
)

STAGED = (
    Step(
        STAGER,
        "make_stager.stager",
        "stages the batch by the rules of its tables",
        "HandOut._stage_next",
        f"{ENGINE}: stage=stager",
    ),
    Step(STAGING, "stage > _Staging.take_batch > _Staging.take", "stages the batch's slices one after the other"),
    Step(TABLE_FILES, "runs_by_table", "groups the row events of a slice by table"),
    Step(STAGING, "_Staging._rows", "decodes the row events of a table", "_Staging.take"),
    Step(
        DECODER,
        "RowDecoder.chunks > RowDecoder._locate_any > RowDecoder._locate",
        "decodes row images into an Arrow record batch",
    ),
    Step(LOCATE, "locate", "finds the bytes of each value in the row images"),
    Step(
        DECODER,
        "RowDecoder._batch > RowDecoder._column > RowDecoder._finished",
        "decodes the columns one after the other",
        "RowDecoder.chunks",
    ),
    Step(
        NUMBERS,
        "_floats",
        "makes an Arrow array of the values of a column, here FLOAT or DOUBLE",
        bound=f"{NUMBERS}: finish=_floats",
    ),
    Step(TABLE_FILES, "TableFiles.add", "adds the record batch to the table's file", "_Staging._rows"),
    Step(
        SEGMENT_WRITER,
        "SegmentWriter.add",
        "gives each row a number, and keeps the rows until a row group is complete",
    ),
    Step(STAGING, "_Staging.finish", "closes the files of all tables", "stage"),
    Step(TABLE_FILES, "TableFiles.close", "closes the table's file"),
    Step(
        SEGMENT_WRITER,
        "SegmentWriter.finish > SegmentWriter._write_rest > SegmentWriter.flush > SegmentWriter._write",
        "writes the remaining rows to Parquet",
    ),
    Step(STAGING, "_publish", "writes the manifest, then gives the batch's folder its final name", "stage"),
    Step(MANIFEST, "manifest_json", "formats the manifest as JSON"),
    Step(LEDGER, "Ledger.hand_out", "adds the staged batch to the ledger", "HandOut._record"),
    Step(
        STORED_LEDGER,
        "StoredLedger.update > StoredLedger._write",
        "writes the ledger to its file",
        "HandOut._record",
    ),
)

MERGED = (
    Step(
        TICK, "Ticker.request", "requests a run of Dagster with a reference to the batch", "Ticker._settle_and_hand_out"
    ),
    Step(
        ASSETS,
        "delta_assets.merge > _merged",
        "takes the batch in the run, and merges it",
        bound=f"{LOCATION}: op_name=merge_name",
    ),
    Step(MERGE_RUN, "merge_one", "finds the batch's staged files, and refuses a batch that is already settled"),
    Step(
        SPARK_MERGE,
        "spark_merge",
        "adds to each table the Delta table to write",
        bound=f"{PORTS}: merge=spark_merge",
    ),
    Step(READ_BATCH, "read_staged_batch", "reads and checks the batch's manifest"),
    Step(MANIFEST, "read_manifest_json", "parses the manifest"),
    Step(
        RUN_BATCH,
        "merge_batch > _merge_tables > _BatchWork.run > _BatchWork._merge",
        "merges several tables of the batch at the same time, each in its own Spark session",
        "spark_merge",
    ),
    Step(MERGE, "merge_table > apply_lacking", "finds the segments that the table does not have"),
    Step(MERGE, "_TableMerge.apply > _TableMerge._change", "applies one of these segments", "merge_table"),
    Step(FOLD, "staged_view", "generates the statement that makes a view of the staged file"),
    Step(MERGE_SQL, "apply_changes", "generates the MERGE statement", "_TableMerge._change"),
    Step(FOLD, "last_images", "generates the query of the last image of each key"),
    Step(
        MERGE_SQL,
        "whole_clauses",
        "generates the clauses of the MERGE, with a condition on the order key",
        "apply_changes",
    ),
    Step(MERGE, "_TableMerge._commit > _TableMerge._execute", "makes one Delta commit", "_TableMerge._change"),
    Step(SESSION, "LakeSession.commit", "checks the fence, and executes the statement in Spark"),
)

ACKED = (
    Step(
        TICK, "Ticker._settle", "acks the batch or rolls it back, by the states of its runs", starts="the engine sensor"
    ),
    Step(ENGINE, "Engine.ack", "acks the batch"),
    Step(HAND_OUT, "HandOut.ack", "records which handler of the user is due, acks, and removes the staged files"),
    Step(
        STREAM_BATCHES,
        "StreamBatches.ack > StreamBatches._settle",
        "acks the batch in the ledger, then in the store",
    ),
    Step(LEDGER, "Ledger.ack", "moves the ledger's cursor to the end of the batch", "StreamBatches.ack"),
    Step(
        STORED_LEDGER,
        "StoredLedger.update > StoredLedger._write",
        "writes the ledger to its file",
        "StreamBatches._settle",
    ),
    Step(STORE, "MemoryEventStore.ack", "frees the batch's blocks", "StreamBatches._settle"),
)

SNAPSHOT_RUN = "orchestration/run/snapshot_run.py"
SPARK_PUBLISH = "orchestration/run/spark_publish.py"
GROUPS = "cdc_engine/snapshot/groups.py"
WORK = "cdc_engine/snapshot/work.py"
TABLE_READER = "cdc_engine/snapshot/table_reader.py"
CHUNKS = "cdc_engine/snapshot/chunks.py"
READ = "cdc_engine/snapshot/read.py"
STATEMENTS = "cdc_engine/snapshot/statements.py"
READER = "cdc_engine/snapshot/reader.py"
RESULT_READER = "cdc_engine/binlog/result_rows/result_reader.py"
RESULT_DECODER = "cdc_engine/binlog/result_rows/decoder.py"
CHUNK_FILES = "cdc_engine/snapshot/chunk_files.py"
PUBLISH = "spark_jobs/snapshot/publish.py"
WHOLE_FILES = "spark_jobs/snapshot/whole_files.py"
TABLE_FILES_OF_SNAPSHOT = "spark_jobs/snapshot/table_files.py"
NEW_TABLE = "spark_jobs/tables/new_table.py"
PUBLISH_SQL = "spark_jobs/snapshot/publish_sql.py"

CHUNK = (
    Step(SNAPSHOT_RUN, "snapshot_job", "works on the open snapshots in a run of Dagster", starts="the snapshot sensor"),
    Step(
        GROUPS,
        "run_all > _repeat > _advance_all > _Group.advance > _Group._read",
        "reads small tables at the same time, and the other tables one after the other",
    ),
    Step(WORK, "read > _read_chunks", "reads the table's chunks that are not yet in files"),
    Step(TABLE_READER, "SourceTable.chunks", "asks for the key range of the next chunk"),
    Step(CHUNKS, "chunks", "finds the key range of the next chunk"),
    Step(
        TABLE_READER,
        "SourceTable.read > SourceTable._read",
        "reads the rows of a key range over a connection",
        "_read_chunks",
    ),
    Step(READ, "read_chunk > _read", "reads the rows of a key range into a Parquet file"),
    Step(STATEMENTS, "rows_statement", "generates the SELECT of the rows", "read_chunk"),
    Step(READER, "RowReader.selecting", "executes the SELECT", "_read"),
    Step(
        RESULT_READER,
        "ResultReader.batches > ResultReader._locate > ResultReader._fill",
        "receives rows from the socket",
        "_read",
    ),
    Step(RESULT_DECODER, "ResultDecoder.batch", "decodes the rows into an Arrow record batch", "ResultReader.batches"),
    Step(CHUNK_FILES, "ChunksInFolder.keep", "records that the chunk's file is complete", "_read_chunks"),
    Step(GROUPS, "_Group._publish", "publishes the tables of a group under the run lock", "_Group.advance"),
    Step(WORK, "publish", "publishes the table, if the stream has passed the position of the read rows"),
    Step(SNAPSHOT_RUN, "_SnapshotListener.publish", "starts the publication and keeps its result for the run's page"),
    Step(
        SPARK_PUBLISH,
        "spark_publish",
        "adds the Delta table to write and the files of the chunks",
        bound=f"{PORTS}: publish=spark_publish",
    ),
    Step(
        PUBLISH,
        "publish_snapshot > publish > _made",
        "checks the table's owner and the files, and chooses one of two ways to publish",
    ),
    Step(
        WHOLE_FILES,
        "make_of_files > _Filling.files > _Filling._of_chunk",
        "first way: adds the chunks' files to a new table as they are, in one commit",
    ),
    Step(
        TABLE_FILES_OF_SNAPSHOT,
        "FilesInFolder.take",
        "first way: links the file of a chunk into the folder of the table",
        "_Filling._of_chunk",
    ),
    Step(
        NEW_TABLE,
        "make_table",
        "first way: writes the first commit, and gives the table's folder its final name",
        "make_of_files",
    ),
    Step(
        PUBLISH,
        "_make_by_spark > _statement",
        "second way: generates the statement with which Spark publishes",
        "_made",
    ),
    Step(PUBLISH_SQL, "selection", "second way: generates the query of the read rows and the buffered changes"),
    Step(SESSION, "LakeSession.commit", "checks the fence, and executes the statement in Spark", "_make_by_spark"),
)

ROWS_JOB = "orchestration/run/rows/job.py"
BACKFILL = "orchestration/run/rows/backfill.py"
OPERATION = "orchestration/run/rows/operation.py"
ROWS_WORK = "cdc_engine/instance/rows/work.py"
READING = "cdc_engine/instance/rows/reading.py"
BINLOG_FILES = "cdc_engine/parser/positions/binlog_files.py"
DUMP = "cdc_engine/parser/stream/dump.py"
ROWS_MERGE = "spark_jobs/rows/merge.py"
ROWS_FOLD = "spark_jobs/rows/fold.py"

INTERVAL = (
    Step(ROWS_JOB, "rows_job > operated", "carries out the request in a run of Dagster", starts="the launched run"),
    Step(BACKFILL, "run_backfill", "merges the changes of an interval again"),
    Step(OPERATION, "operate", "reads the interval, then takes the run lock and merges"),
    Step(BACKFILL, "_Backfill.read", "passes the interval of the request to the reading", "operate"),
    Step(
        ROWS_WORK,
        "BackfillReading.read > BackfillReading._read_all > BackfillReading._go_on",
        "reads and stages the interval",
    ),
    Step(
        READING,
        "IntervalReader.staged > IntervalReader._staged_once > IntervalReader._parts",
        "makes batches of the interval's blocks",
    ),
    Step(
        BINLOG_FILES, "BinlogFiles.blocks", "reads the blocks from the server or from the archive of its binlog files"
    ),
    Step(DUMP, "blocks_to_end", "asks the connection for the next bytes, and passes these bytes to the scan"),
    Step(CONNECTION, "SourceConnection.receive_into", "receives bytes from the socket"),
    Step(FRAMING, "PacketFramer.received", "finds the complete packets in the bytes", "blocks_to_end"),
    Step(
        SCANNER,
        "Scanner.feed > Scanner._fed > Scanner._events > Scanner._scan",
        "passes the packets to the scan's kernel, which finds the events",
    ),
    Step(KERNEL, "scan", "makes an index of the events, which stay in the buffer"),
    Step(
        BLOCK_MAKER,
        "BlockMaker.end_block > BlockMaker._block",
        "makes a block that consists of the buffer and the index",
        "Scanner._fed",
    ),
    Step(
        STAGING,
        "stage > _Staging.take_batch > _Staging.take",
        "stages the batch's slices one after the other",
        "IntervalReader._staged_once",
    ),
    Step(TABLE_FILES, "runs_by_table", "groups the row events of a slice by table"),
    Step(STAGING, "_Staging._rows", "decodes the row events of a table", "_Staging.take"),
    Step(
        DECODER,
        "RowDecoder.chunks > RowDecoder._locate_any > RowDecoder._locate",
        "decodes row images into an Arrow record batch",
    ),
    Step(LOCATE, "locate", "finds the bytes of each value in the row images"),
    Step(
        DECODER,
        "RowDecoder._batch > RowDecoder._column > RowDecoder._finished",
        "decodes the columns one after the other",
        "RowDecoder.chunks",
    ),
    Step(
        NUMBERS,
        "_floats",
        "makes an Arrow array of the values of a column, here FLOAT or DOUBLE",
        bound=f"{NUMBERS}: finish=_floats",
    ),
    Step(TABLE_FILES, "TableFiles.add", "adds the record batch to the table's file", "_Staging._rows"),
    Step(
        SEGMENT_WRITER,
        "SegmentWriter.add",
        "gives each row a number, and keeps the rows until a row group is complete",
    ),
    Step(STAGING, "_Staging.finish", "closes the files of all tables", "stage"),
    Step(TABLE_FILES, "TableFiles.close", "closes the table's file"),
    Step(
        SEGMENT_WRITER,
        "SegmentWriter.finish > SegmentWriter._write_rest > SegmentWriter.flush > SegmentWriter._write",
        "writes the remaining rows to Parquet",
    ),
    Step(
        OPERATION,
        "_merge",
        "under the run lock, reads the changes that the lake got since the reading ended",
        "operate",
    ),
    Step(OPERATION, "_merge_tables", "adds to each table the Delta table to write"),
    Step(ROWS_MERGE, "merge_rows", "merges one table after the other"),
    Step(READ_BATCH, "read_staged_batch", "reads and checks the batch's manifest"),
    Step(
        ROWS_FOLD,
        "folded > decide",
        "writes the last image of each key that changed in the interval to one file",
        "merge_rows",
    ),
    Step(
        ROWS_MERGE,
        "_OneTable.merge > _OneTable._write > _OneTable._merge",
        "merges this file under the table's lock",
        "merge_rows",
    ),
    Step(MERGE, "merge_table > apply_lacking", "applies the file like a segment of a batch"),
    Step(MERGE, "_TableMerge.apply > _TableMerge._change", "applies one segment", "merge_table"),
    Step(FOLD, "staged_view", "generates the statement that makes a view of the file"),
    Step(MERGE_SQL, "apply_changes", "generates the MERGE statement", "_TableMerge._change"),
    Step(FOLD, "last_images", "generates the query of the last image of each key"),
    Step(
        MERGE_SQL,
        "whole_clauses",
        "generates the clauses of the MERGE, with a condition on the order key",
        "apply_changes",
    ),
    Step(MERGE, "_TableMerge._commit > _TableMerge._execute", "makes one Delta commit", "_TableMerge._change"),
    Step(SESSION, "LakeSession.commit", "checks the fence, and executes the statement in Spark"),
)

PATHS = {
    "a change, from socket to ack": (*STREAM, *HANDED_OUT, *STAGED, *MERGED, *ACKED),
    "a chunk of a snapshot": CHUNK,
    "a backfill": INTERVAL,
}
