"""Operator commands: `faust -A app models|tables|topics|replay|reset|doctor`."""
