"""Tests tables that foreign keys connect, tables that are renamed or imported, shards, and system-versioned tables."""
