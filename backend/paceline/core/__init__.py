"""Domain types and policy: standard library only, no torch, no clock, no wire."""
