"""Delta tables: whose they are, how they follow their source, who reads them."""
