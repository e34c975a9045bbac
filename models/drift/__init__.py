"""What a model's own answers tell of it: detectors over one version's stream of scores. Pure: no topic, no table."""
