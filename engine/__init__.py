"""Faust made fast and exact: transport, partition tasks, state, outputs, dead letters, embedded broker."""
