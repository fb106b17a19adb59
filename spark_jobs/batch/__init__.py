"""Merges all tables of one staged batch."""
