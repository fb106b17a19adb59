"""Values that could not be decoded: stores them in a Delta table of the destination, and puts them back once they can be decoded."""
