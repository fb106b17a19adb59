"""Buffers the changes of a table while a snapshot reads its rows, and publishes rows and changes in one commit."""
