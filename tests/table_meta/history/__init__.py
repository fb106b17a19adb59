"""The schema history: by position, across restarts, against real servers."""
