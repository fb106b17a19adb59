"""The consumers of a destination beside the lake: each with a cursor, a filter and a pace of its own."""
