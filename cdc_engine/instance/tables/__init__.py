"""Changes to single tables while an engine runs: resumes, newly included tables, re-snapshots."""
