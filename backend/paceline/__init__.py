"""Paceline: an async streaming LLM backend with lossless speculative decoding."""

__version__ = "0.1.0"
