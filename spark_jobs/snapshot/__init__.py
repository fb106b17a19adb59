"""Buffers the changes of a table while a snapshot reads the table's rows, and publishes the rows and the changes in one commit."""
