"""Parses single events: types, control events, statements, table maps, and the contents of compressed events."""
