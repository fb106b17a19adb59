"""The limits of the engine, with reasons. If an operator may change a limit, it is the default of a setting in `config`."""

MEBIBYTE = 1 << 20

# The buffer for one block: large enough that Python's cost per block is negligible, small enough that a ring has many of them.
READ_BUFFER_BYTES = 4 * MEBIBYTE
# The largest event: MySQL's maximum of max_allowed_packet. A greater length in an event is an error.
EVENT_BYTES_MAX = 1 << 30
# The most bytes of a compressed transaction after decompression. A greater number is an error. It is decompressed piece by piece, so this
# does not limit memory.
PAYLOAD_BYTES_MAX = 1 << 33
PACKET_BYTES_MAX = 0xFFFFFF  # A packet of this size continues in the next packet (MySQL's protocol).
RING_BYTES_MAX = 64 * MEBIBYTE  # The default size of the ring: sixteen read buffers.
# The most row events in the ring. Usually the ring is full before, by its bytes. For rows of a few bytes, this limits the arrays that
# index the events.
RING_EVENTS_MAX = 1_000_000
# The default size of the event files, if the store is in files: an hour of changes at 2 MiB/s.
STORE_BYTES_MAX = 8 << 30
SEGMENT_BYTES = 64 * MEBIBYTE  # The size of one event file. Each is synced and removed as a whole.
# The bytes of row events that stay available for consumers other than the lake. Most of them are in the ring anyway.
WINDOW_BYTES_MAX = 64 * MEBIBYTE
# The bytes of a dump that several destinations share. A destination that falls further behind opens its own connection.
SHARED_BYTES_MAX = 64 * MEBIBYTE
BATCH_BYTES_MAX = 256 * MEBIBYTE  # A batch has everything that waits, up to this size.
# The most row events in a batch: as many as in the ring, for the same reason.
BATCH_EVENTS_MAX = 1_000_000
# A search by time reads this much further, because commit times in the binlog are not in exact order.
COMMITS_DISORDER_SECONDS = 60
# If the source takes longer to answer, one heartbeat has failed. Several failures in a row cause a failover.
HEARTBEAT_QUERY_SECONDS_MAX = 5
HEARTBEAT_SECONDS = 15  # The server sends a heartbeat at this interval while the stream is idle.
# The heartbeat's interval and 10 s more. After a longer silence, the connection is considered lost.
READ_TIMEOUT_SECONDS = 25
CONNECT_TIMEOUT_SECONDS = 10
# How long the server may send nothing while a snapshot reads. The query for a chunk may search for long before the first row.
SNAPSHOT_SILENCE_SECONDS_MAX = 3600
# The kernel probes a peer that is silent for KEEPALIVE_IDLE_SECONDS, then every KEEPALIVE_AGAIN_SECONDS. It drops the connection after
# some nine probes without an answer.
KEEPALIVE_IDLE_SECONDS = 60
KEEPALIVE_AGAIN_SECONDS = 15
# The wait before the first reconnection. It doubles after each failure, with jitter, up to RECONNECT_SECONDS_MAX.
RECONNECT_SECONDS_MIN = 0.5
RECONNECT_SECONDS_MAX = 20.0
# How long a parser waits before it restarts after a temporary error, for example a full disk, or another replica with the same server id.
REVIVE_SECONDS = 5.0
REVIVE_SECONDS_MAX = 60.0  # The wait doubles up to this many seconds, except after a full disk.
# A second connection queries the end of the source's binlog and the source's identity at this interval.
SOURCE_WATCH_SECONDS = 60.0
# If a stream seems to come from another server, it is checked again after this time, because the first answer may have been slightly old.
WATCH_AGAIN_SECONDS = 3.0
# Between runs, the Delta tables are checked at this interval. An unchanged table costs two stat calls.
LAKE_WATCH_SECONDS = 30.0
# If an engine's sensor has not ticked for this long, a problem is reported. Dagster starts a tick every 5 s, but a busy daemon may be
# late.
TICK_SILENCE_SECONDS_MAX = 90.0
# For this long, a failed tick is proof that the daemon runs. After failures, ticks are up to 300 s apart.
TICK_FAILED_SECONDS_MAX = 400.0
# How long the cursor may stay where it is while changes wait. The largest batches take some minutes.
PROGRESS_SECONDS_MAX = 600.0
# How long it may take from the hand-out of a batch until a run works on it: the run is queued and created, and imports Dagster.
RUN_BEGIN_SECONDS_MAX = 300.0
START_SECONDS_MAX = 180.0  # How long an engine may take to connect and to compile its kernels.
# How long a tick of the sensor waits for a batch or for the end of its run. Dagster starts a tick every 5 s.
TICK_SECONDS_MAX = 4.2
# A tick that finds nothing to do looks again, for this long in all. Like TICK_SECONDS_MAX, it ends shortly before Dagster's next
# evaluation. It is shorter than the 60 s that Dagster allows a tick.
IDLE_TICK_SECONDS_MAX = 24.2
SENSORS = 2  # Each destination has this many: one for its engine, and one for its snapshots.
SENSOR_WORKERS = 4  # Dagster's daemon runs this many ticks at once (sensors.num_workers in conf/dagster.yaml).
# The interval of observations. Dagster plots the last 100, which are then 100 minutes.
OBSERVATION_SECONDS = 60
RUN_SECONDS_MAX = 3600  # A run that reports nothing for this long is ended, and its batch is rolled back.
