"""Reads one binlog of a live server with a bare socket, with similar tools and with Sluice, for `./sluice bench engine`.

Sluice runs as in production, with parser, sink, ring, batches and a ledger on disk. This benchmark measures Sluice in three ways: batches
are acked without decoding, or decoded but not written, or staged to Parquet.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.binlog_sets import BinlogSet, make_bulk, make_oltp, make_varied, make_wide, prepare
from benchmarks.contenders import java_connector_rows, mysql_replication_rows, raw_socket_seconds
from benchmarks.report import median, show, write_json
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.config import BatchConfig, DestinationConfig, RingConfig, SluiceConfig
from sluice.cdc_engine.contracts import Batch
from sluice.cdc_engine.ha.file_lease import FileLease
from sluice.cdc_engine.instance.batches.stream_batches import StreamBatches
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.engine.wiring import make_parts
from sluice.cdc_engine.instance.parts import EngineParts
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.settings import SourceConfig, StartConfig, TlsConfig
from sluice.cdc_engine.staging.table_files import runs_by_table
from sluice.console.toolchain.database.server import DatabaseServer

RUNS = 5
OLTP_TRANSACTIONS, BULK_ROWS, BULK_STATEMENTS = 300_000, 1_500_000, 30
VARIED_ROWS, VARIED_STATEMENTS = 600_000, 60
SETS: dict[str, Callable[[Any], BinlogSet]] = {
    "oltp": lambda cursor: make_oltp(cursor, OLTP_TRANSACTIONS),
    "bulk": lambda cursor: make_bulk(cursor, BULK_ROWS, BULK_STATEMENTS),
    "varied": lambda cursor: make_varied(cursor, VARIED_ROWS, VARIED_STATEMENTS),
    "wide": lambda cursor: make_wide(cursor, VARIED_ROWS, VARIED_STATEMENTS),
}
# mysql-replication reads for at most this long. The rate of mysql-replication is constant, and reading the whole binlog would take minutes.
PEER_SECONDS_MAX = 10.0
DEADLINE_SECONDS = 300.0
MEBIBYTE = 1 << 20


def run(
    json_file: Path | None,
    *,
    release: str = "mysql-8.0.31",
    tls: bool = False,
    names: Collection[str] = (),
    runs: int = RUNS,
    sets: Mapping[str, Callable[[Any], BinlogSet]] = SETS,
) -> None:
    """Measures the named sets, by default all, with all contenders. In each of `runs` rounds, the contenders take turns. Reports medians.

    `release` is a database server of the toolchain. With `tls`, all contenders connect with TLS.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        options = {"max_binlog_size": 1 << 30, "binlog_expire_logs_seconds": 86400 * 7}
        with DatabaseServer(release, folder / "mysql", options=options) as server:
            cursor = server.connect().cursor()
            prepare(cursor)
            record: dict[str, dict[str, Any]] = {}
            for make in [make for each, make in sets.items() if each in names or not names]:
                # A batch contains all changes up to the end of the binlog. So each set is measured before the next set is created.
                binlog = make(cursor)
                record[binlog.name] = measure(server, binlog, folder, runs, tls=tls)
    host_rss_mb = max(row["engine_rss_mb_max"] for row in record.values())
    show("engine", [{"set": name, **row} for name, row in record.items()])
    write_json(
        json_file,
        {"engine": record, "engine_host_rss_mb_max": host_rss_mb, "runs": runs, "server": release, "tls": tls},
    )


def measure(server: DatabaseServer, binlog: BinlogSet, folder: Path, runs: int, *, tls: bool) -> dict[str, Any]:
    """Measures one set with each contender. The figures are megabytes (10⁶ bytes) and rows per second."""
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "root", "password": ""}
    # The certificate of a test server has no known issuer.
    settings |= {"ssl": {"check_hostname": False}} if tls else {"ssl_disabled": True}
    config = configuration(server, binlog, folder, tls=tls)
    acked_seconds(config, binlog)  # The first call compiles or loads the kernels, so it is not measured.
    decoded_seconds(config, binlog)
    raw, peer, java, start, acked, decoded, staged, cpu, rss_mb = [], [], [], [], [], [], [], [], 0.0
    for _ in range(runs):
        raw.append(binlog.bytes / raw_socket_seconds(settings, binlog) / 1e6)
        rows, seconds = mysql_replication_rows(settings, binlog, PEER_SECONDS_MAX)
        peer.append(rows / seconds)
        rows, seconds = java_connector_rows(settings, binlog)
        java.append(rows / seconds)
        start.append(start_seconds(config))
        acked.append(acked_seconds(config, binlog))
        decoded.append(decoded_seconds(config, binlog))
        before = time.process_time()
        staged.append(staged_seconds(config, binlog))
        cpu.append(time.process_time() - before)
        rss_mb = max(rss_mb, psutil.Process().memory_info().rss / MEBIBYTE)
    return {
        "raw_mb_per_s": median(raw),
        "mysql_replication_rows_per_s": median(peer),
        "java_connector_rows_per_s": median(java),
        "start_s": median(start),
        "acked_mb_per_s": median([binlog.bytes / each / 1e6 for each in acked]),
        "acked_rows_per_s": median([binlog.rows / each for each in acked]),
        "decoded_rows_per_s": median([binlog.rows / each for each in decoded]),
        "staged_rows_per_s": median([binlog.rows / each for each in staged]),
        "staged_cpu_s": median(cpu),
        "start_to_staged": median([first / each for first, each in zip(start, staged, strict=True)]),
        "acked_to_raw": median([binlog.bytes / each / 1e6 / ceiling for each, ceiling in zip(acked, raw, strict=True)]),
        "acked_to_mysql_replication": median(
            [binlog.rows / each / rate for each, rate in zip(acked, peer, strict=True)]
        ),
        "decoded_to_java_connector": median(
            [binlog.rows / each / rate for each, rate in zip(decoded, java, strict=True)]
        ),
        "staged_to_java_connector": median(
            [binlog.rows / each / rate for each, rate in zip(staged, java, strict=True)]
        ),
        "rows": binlog.rows,
        "megabytes": round(binlog.bytes / 1e6, 1),
        "engine_rss_mb_max": round(rss_mb),
    }


def configuration(server: DatabaseServer, binlog: BinlogSet, folder: Path, *, tls: bool = False) -> SluiceConfig:
    destination = DestinationConfig(
        name="bench",
        source=SourceConfig(
            port=server.port, user="root", tls=TlsConfig(mode="REQUIRED") if tls else TlsConfig(mode="DISABLED")
        ),
        include=r"bench\..*",
        start=StartConfig(file=binlog.file, offset=binlog.start),
        ring=RingConfig(),
        batch=BatchConfig(),
    )
    return SluiceConfig(data_dir=folder / "data", lake=str(folder / "lake"), destinations={"bench": destination})


def known_start(config: SluiceConfig) -> tuple[EngineParts, FileLease]:
    """Creates a destination at the start of its set, with the schema that is valid there. So the measured time does not include the
    discovery of the schema.
    """
    directory = config.destination_dir("bench")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    lease = FileLease(directory)
    assert lease.try_acquire()
    return make_parts(config.destinations["bench"], directory, lease, on_state=_quiet, on_start=_ignore), lease


def start_seconds(config: SluiceConfig) -> float:
    """Returns the seconds that a destination takes to load the schemas at the start of its set. For this, the engine scans the whole set
    for DDL statements before the stream begins.
    """
    begun = time.perf_counter()
    known_start(config)[1].release()
    return time.perf_counter() - begun


def acked_seconds(
    config: SluiceConfig, binlog: BinlogSet, take: Callable[[Batch], None] = lambda _batch: None
) -> float:
    """Returns the seconds from the start of the dump until the last batch of the set is acked. Each batch is passed to `take`. Nothing is
    staged.
    """
    parts, lease = known_start(config)
    stream = StreamBatches("bench", parts.store, parts.meta, never_rewound)
    limits = config.destinations["bench"].batch
    begun = time.perf_counter()
    parts.parser.start(parts.meta.ledger.cursor)
    try:
        while time.perf_counter() - begun < DEADLINE_SECONDS:
            batch = stream.get(limits.bytes_max, BATCH_EVENTS_MAX, timeout_seconds=1.0)
            take(batch)
            ack_unstaged(stream, parts.meta, batch)
            if batch.end is not None and batch.end.offset >= binlog.end:
                return time.perf_counter() - begun
        raise TimeoutError(f"the set {binlog.name} was not read within {DEADLINE_SECONDS} s: {parts.parser.reason}")
    finally:
        parts.parser.stop()
        lease.release()


def ack_unstaged(stream: StreamBatches, meta: MetaManager, batch: Batch) -> None:
    """Hands out and acks a batch in one write of the ledger. The batch is not staged, so its path in the ledger does not exist."""
    if batch.end is not None:
        stream.skip(dataclasses.replace(meta.ledger.next_batch(batch.end, batch.start), path="not-staged"))


def never_rewound(_: Position | None) -> None:
    raise AssertionError("a benchmark rolls no batch back")


def decoded_seconds(config: SluiceConfig, binlog: BinlogSet) -> float:
    """Measures as `acked_seconds` does, but decodes each batch into Arrow columns. The columns are not written, so this measures the
    cost of decoding.
    """
    decoders: dict[str, RowDecoder] = {}

    def decode(batch: Batch) -> None:
        for part in batch.slices:
            for version, chosen in runs_by_table(part):
                decoder = decoders.setdefault(version.version, RowDecoder(version))
                for _ in decoder.chunks(part.block, chosen):
                    pass

    return acked_seconds(config, binlog, decode)


def staged_seconds(config: SluiceConfig, binlog: BinlogSet) -> float:
    """Measures as `acked_seconds` does, but with the whole engine. Each batch is written as Parquet with its manifest, and then acked."""
    known_start(config)[1].release()
    engine = Engine(config, "bench")
    begun = time.perf_counter()
    engine.start()
    try:
        while time.perf_counter() - begun < DEADLINE_SECONDS:
            batch = engine.hand_out(1.0)
            if batch is not None:
                engine.ack(batch)
                if batch.end.offset >= binlog.end:
                    return time.perf_counter() - begun
        raise TimeoutError(
            f"the set {binlog.name} was not staged within {DEADLINE_SECONDS} s: {engine.status().reason}"
        )
    finally:
        engine.stop()


def _quiet(_state: str, _reason: str) -> None:
    """Ignores the states of a benchmark's parser. If the parser fails, the benchmark times out, with the reason in the error."""


def _ignore(_start: object) -> None:
    """Ignores the start decision, because the server of a benchmark is always the same."""
