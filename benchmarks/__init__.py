"""Benchmarks against named rivals on a real broker: `python -m benchmarks [NAME]`, one JSON object a line."""
