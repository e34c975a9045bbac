"""A conversation with a small language model."""
