"""One engine a destination, across processes."""
