"""What keeps Delta tables quick and small: when their files are written anew, and which are removed; under the run lock."""
