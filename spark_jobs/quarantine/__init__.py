"""Values that could not be decoded: kept in a Delta table of the destination, and put back once they can be."""
