"""Sequences, scheduling, drafting, verification and commit: one owner thread, no event loop."""
