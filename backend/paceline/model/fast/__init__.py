"""A fast path over unchanged transformers models: fused, prepacked equivalents of standard parts.

`speed_up` looks at a loaded model, proves on random input that an equivalent computes the same, and
only then puts it in place. What it does not recognise stays as transformers wrote it.
"""

from paceline.model.fast.fast_path import FastPath, speed_up
from paceline.model.fast.lean import LeanDecoder

__all__ = ["FastPath", "LeanDecoder", "speed_up"]
