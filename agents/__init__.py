"""What happens on streams: each agent reads, calls, stages."""
