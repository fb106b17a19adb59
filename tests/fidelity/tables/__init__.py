"""Tables that are bound to others, change names, or keep their past."""
