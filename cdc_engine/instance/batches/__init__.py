"""Makes the batches that runs merge: `stream_batches` takes changes from the store, and `hand_out` stages them."""
