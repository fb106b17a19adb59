"""From the parser's blocks to the store: what nobody asked for is dropped here, by the block and never by the row."""
