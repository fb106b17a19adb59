"""Parses single binlog events: control events, statements, table maps, and compressed events."""
