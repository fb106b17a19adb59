"""Changes single tables while an engine runs: resumes them, re-snapshots them, and starts tables that conf/ newly includes."""
