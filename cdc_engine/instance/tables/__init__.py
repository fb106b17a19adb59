"""What becomes of single tables while an engine runs: taken up again, newly included, read anew."""
