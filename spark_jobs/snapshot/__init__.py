"""Snapshots of tables: buffers the changes that arrive while rows are read, and publishes rows and changes in one commit."""
