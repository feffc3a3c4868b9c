"""Logits to probabilities, acceptance rules and counter-based randomness; torch only as values."""
