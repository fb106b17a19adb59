"""Generated schemas, rows and damage, judged by real servers."""
