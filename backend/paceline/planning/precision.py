"""Number formats of weights: bytes a parameter, and the arithmetic they run at."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Precision:
    """How the linear layers are stored. Embedding, head and norms stay in 16 bits unless the
    whole model is: that is how FP8, AWQ and GPTQ checkpoints are made."""

    name: str
    bits: float
    native_fp8: bool
    note: str

    @property
    def bytes_per_param(self) -> float:
        return self.bits / 8.0


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("bf16", 16.0, False, "16 bits, nothing lost"),
        Precision("fp8", 8.0, True, "8-bit floats; FP8 arithmetic where the device has it"),
        Precision("int8", 8.0, False, "8-bit weights, 16-bit arithmetic"),
        Precision(
            "int4",
            4.15625,
            False,
            "4-bit weights in groups of 128: 4 bits, a 16-bit scale and a 4-bit zero a group",
        ),
    )
}
_ALIASES = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "awq": "int4", "gptq": "int4"}

KV_BYTES = {"bf16": 2, "fp8": 1}
"""Bytes an element of the K/V cache takes."""


def find_precision(name: str) -> Precision:
    """The precision of that name; raises ConfigError with all names if there is none."""
    key = name.strip().lower()
    precision = PRECISIONS.get(_ALIASES.get(key, key))
    if precision is None:
        known = ", ".join([*PRECISIONS, *_ALIASES])
        raise ConfigError(f"unknown dtype {name!r}; known: {known}", field="dtype")
    return precision


def find_kv_bytes(name: str) -> int:
    """Bytes an element of the K/V cache takes in the format of that name."""
    key = name.strip().lower()
    size = KV_BYTES.get(_ALIASES.get(key, key))
    if size is None:
        raise ConfigError(
            f"unknown K/V dtype {name!r}; known: {', '.join(KV_BYTES)}", field="kv_dtype"
        )
    return size
