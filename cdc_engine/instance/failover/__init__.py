"""Sources that stand by for one another: is the one that is read alive, which other can take over, and the change itself."""
