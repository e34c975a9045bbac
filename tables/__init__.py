"""One table a file: its key, its value, how long it keeps, who writes it."""
