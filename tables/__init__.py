"""One table a file: key, value type, retention, who writes it."""
