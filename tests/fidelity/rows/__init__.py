"""Row images and transactions of every kind."""
