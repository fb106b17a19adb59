"""DDL text → statements as values."""
