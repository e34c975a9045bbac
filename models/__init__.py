"""Models and nothing else: manifest, store, runtime, inference, confidence, live versions. Never imports faust."""
