"""Tables beside the mirror of a source table, from the same staged batches: its change log, and the history of its rows."""
