"""Documents to passages, and questions to the passages that answer them. Knows no stream and no topic."""
