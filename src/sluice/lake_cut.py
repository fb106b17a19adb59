"""Refuses imports of the former name of `sluice.consistent_snapshot`, and says the new name."""

raise ImportError(
    "sluice.lake_cut is now sluice.consistent_snapshot: read_cut is read_consistent_snapshot, Cut is ConsistentSnapshot, CutTable is "
    "TableAtVersion, and CutError is ConsistentSnapshotError"
)
