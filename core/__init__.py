"""What every layer knows: settings, topics, event types and errors. Imports nothing of ours."""
