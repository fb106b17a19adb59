"""Defines the limits of the engine, with the reasons for their values. A limit that an operator may change is the default of a setting in
`config`.
"""

MEBIBYTE = 1 << 20

# The size of the buffer for one block: large enough that the time that Python needs per block is negligible, and small enough that the ring
# has space for many blocks.
READ_BUFFER_BYTES = 4 * MEBIBYTE
# The most bytes of one event: MySQL's maximum of max_allowed_packet. An event whose header has a greater length is an error.
EVENT_BYTES_MAX = 1 << 30
# The most bytes of a compressed transaction after decompression. An event that states a larger size is considered damaged. The limit only
# detects damaged events. It does not protect memory, because a transaction is decompressed piece by piece.
PAYLOAD_BYTES_MAX = 1 << 33
# The most bytes in one packet of MySQL's protocol. A packet of this size continues in the next packet.
PACKET_BYTES_MAX = 0xFFFFFF
RING_BYTES_MAX = 64 * MEBIBYTE  # The default size of the ring: sixteen read buffers.
# The default limit of row events in the ring. The arrays that index the events need memory that RING_BYTES_MAX does not count. With events
# of more than some 64 bytes, the ring reaches RING_BYTES_MAX first.
RING_EVENTS_MAX = 1_000_000
# The default limit of the total size of the event files, if the store is in files: an hour of changes at 2 MiB/s.
STORE_BYTES_MAX = 8 << 30
# The size at which the store begins a new event file. The store removes only whole files, when all events in a file are acked.
SEGMENT_BYTES = 64 * MEBIBYTE
# How many bytes of a binlog dump that several destinations share stay in memory. A destination that falls further behind opens its own
# connection.
SHARED_BYTES_MAX = 64 * MEBIBYTE
BATCH_BYTES_MAX = 256 * MEBIBYTE  # A batch contains all changes that wait in the store, up to this size.
# The most row events in a batch. Without this limit, the arrays that index small events could need more memory than BATCH_BYTES_MAX.
BATCH_EVENTS_MAX = 1_000_000
# Commit times in the binlog are not in exact order: MariaDB and MySQL before 8.0 log the time at which a transaction's last statement
# began. So a search by time ends only at commits that are more than this time later than the requested time. Few statements take longer.
COMMITS_DISORDER_SECONDS = 3600
# Sluice checks a source with a heartbeat query. If the source does not answer within this time, the check has failed. Several failed checks
# in a row cause a failover.
HEARTBEAT_QUERY_SECONDS_MAX = 5
# The interval at which the server sends a heartbeat event in a dump while it has no other events to send.
HEARTBEAT_SECONDS = 15
# If the server sends nothing for this long, the connection is considered lost: HEARTBEAT_SECONDS and 10 s more.
READ_TIMEOUT_SECONDS = 25
CONNECT_TIMEOUT_SECONDS = 10
# Sluice ends a command that fetches a binlog file after this time, and starts the command again later. The time is enough for a file of
# 1 GiB, the greatest max_binlog_size, at 0.3 MB/s.
ARCHIVE_FETCH_SECONDS_MAX = 3600
# How long the server may send nothing while a snapshot reads. The server may search for a long time before it sends the first row of a
# chunk.
SNAPSHOT_SILENCE_SECONDS_MAX = 3600
# If the server sends nothing for KEEPALIVE_IDLE_SECONDS, the operating system sends a TCP keepalive probe every KEEPALIVE_AGAIN_SECONDS.
# After some nine probes without an answer, the operating system drops the connection.
KEEPALIVE_IDLE_SECONDS = 60
KEEPALIVE_AGAIN_SECONDS = 15
# The wait before a parser reconnects for the first time. The wait doubles after each failure, with jitter, up to RECONNECT_SECONDS_MAX.
RECONNECT_SECONDS_MIN = 0.5
RECONNECT_SECONDS_MAX = 20.0
# How long a parser waits before it restarts after a temporary error, for example a full disk, or another replica with the same server id.
REVIVE_SECONDS = 5.0
REVIVE_SECONDS_MAX = 60.0  # REVIVE_SECONDS doubles after each restart, up to this value, but not after a full disk.
# The interval at which the engine checks whether its dump still works. Over a second connection, it queries the end of the source's binlog
# and the source's identity.
SOURCE_WATCH_SECONDS = 60.0
# If a check finds that the stream does not match the source, the next check follows after this time. Sluice reconnects only after two such
# checks, because the stream may read more events while a check queries the source.
WATCH_AGAIN_SECONDS = 3.0
# The interval at which the engine checks, between runs, whether another writer changed a Delta table. The check of an unchanged table is
# cheap: it needs two stat calls.
LAKE_WATCH_SECONDS = 30.0
# If an engine's sensor has not ticked for this long, Sluice reports a problem. Dagster starts a tick every 5 s, but a busy daemon may be
# late.
TICK_SILENCE_SECONDS_MAX = 90.0
# A failed tick that is not older than this proves that the daemon runs. After failures, Dagster starts ticks up to 300 s apart.
TICK_FAILED_SECONDS_MAX = 400.0
# If changes wait and the cursor has not moved for this long, Sluice reports a problem. A shorter time is normal, because the merge of the
# largest batches takes some minutes.
PROGRESS_SECONDS_MAX = 600.0
# If no run works on a batch this long after its hand-out, Sluice reports a problem. In this time, Dagster queues the run and creates its
# process, which imports Dagster.
RUN_BEGIN_SECONDS_MAX = 300.0
# How long an engine may take to start before Sluice reports a problem. In this time, the engine connects and compiles its numba kernels.
START_SECONDS_MAX = 180.0
# How long a tick of the engine sensor waits for a batch, or for the end of the batch's run. The wait is shorter than 5 s, the interval at
# which Dagster starts ticks.
TICK_SECONDS_MAX = 4.2
# How long a tick of an idle destination waits for a batch, if the daemon has a worker for each sensor. Dagster starts ticks every 5 s. The
# wait ends shortly before a multiple of 5 s, so that the next tick follows at once. It must be shorter than 60 s, because Dagster ends a
# tick after this time.
IDLE_TICK_SECONDS_MAX = 24.2
SENSORS = 2  # The number of sensors per destination: one for the engine, and one for the snapshots.
SENSOR_WORKERS = 4  # Dagster's daemon runs this many ticks at once (sensors.num_workers in conf/dagster.yaml).
# The interval at which the sensor reports values of an engine to Dagster as observations of the engine's asset. Dagster plots the last 100
# observations, that is, the last 100 minutes.
OBSERVATION_SECONDS = 60
# A draining run ends if it gets no batch for this long, because it occupies a slot of Dagster's queue. The next change then waits some 5 s
# for another run, which is short compared with the time in which no change came.
DRAIN_IDLE_SECONDS_MAX = 300.0
# A draining run ends after this time even if changes wait, because Dagster's page of a run with a thousand batches is slow.
DRAIN_SECONDS_MAX = 1800.0
RUN_SECONDS_MAX = 3600  # A run that reports nothing for this long is ended, and its batch is rolled back.
