"""Which turns of a session a model is told of, a policy a file: turns with their tokens in, chosen ones out."""
