"""What to expect before you run: speedup, memory and pairing, without torch."""
