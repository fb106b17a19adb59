"""Tests the decoding of the binlog and of query results: events, table maps, rows, values, character sets, and Canal's entries."""
