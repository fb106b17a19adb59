"""Delta tables: the state that their logs describe, their owners, and how they follow schema changes of the source."""
