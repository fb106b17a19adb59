"""What all of orchestration uses: the ports with their fakes, the reference to a batch, the list of tables, the settings of a lake."""
