"""What a tick of the sensor asks, decides and does: settle the batch that is out, publish, hand out the next."""
