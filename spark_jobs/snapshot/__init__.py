"""Tables whose rows are being read: their changes are held, and in the end both are published in one commit."""
