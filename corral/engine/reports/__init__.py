"""What a run tells and leaves: events, metrics, samples, the model card, the output folder; no training."""
