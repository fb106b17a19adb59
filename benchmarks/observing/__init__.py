"""What benchmarks observe while they work: memory, and the times of each delivery."""
