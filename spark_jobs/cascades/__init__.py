"""Changes that foreign keys made without row events: finds them by replaying the batch on the rows, and stages them as images."""
