"""Blocks of K/V memory: the pool, the prefix cache and the tensors."""
