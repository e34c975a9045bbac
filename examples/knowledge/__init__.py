"""Something to know and something to understand it with: Faust's documentation, and a small embedder."""
