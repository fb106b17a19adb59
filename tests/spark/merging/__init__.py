"""What a merge makes of row images."""
