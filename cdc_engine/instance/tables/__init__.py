"""Changes single tables while an engine runs: resumes them, adds newly included ones, re-snapshots them."""
