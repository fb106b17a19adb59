"""`sluice import-canal`: what Canal's own configuration says, as conf/; and what of it Sluice has no place for."""
