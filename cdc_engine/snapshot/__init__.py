"""The rows that a table has already: read in chunks while the stream goes on, and published with what changed meanwhile."""
