"""Decoders: replies, what is kept of sessions, templates, sampling."""
