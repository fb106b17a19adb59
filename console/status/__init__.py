"""`sluice status`: the processes, and each destination as its files describe it."""
