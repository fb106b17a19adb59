"""What foreign keys changed in the lake's tables without row events: played over the rows, and staged as images."""
