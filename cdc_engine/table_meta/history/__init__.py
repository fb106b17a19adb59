"""Schemas by position: kept, matched with table maps, read from the server, decided on by operators."""
