"""Commands that query the lake and that change it."""
