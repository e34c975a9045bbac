"""An application under test: its agent's outputs leave before their commit."""
