"""Accelerators: bandwidth, arithmetic, memory and links.

All figures are the vendors' own, from their data sheets: dense arithmetic without sparsity,
16-bit products summed in 32 bits. Nobody reaches them; `Efficiency` says which part we count
on, and the planner prints it. Two of them need a word: `memory_gib` is the capacity that the
card is sold with, counted in GiB because that is what the driver reports (a little less), and
`link_gb_s` is one direction of all links together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.core.errors import ConfigError

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What part of the vendor's figures a good engine reaches, and fixed costs beside them.

    These are the planner's assumptions, not measurements; every one is an option.

    bandwidth: of the memory bandwidth, while reading weights or K/V.
    compute: of the dense arithmetic, in matrix products.
    layer_us: microseconds a layer takes for its small kernels (norms, rotary embedding,
        activation, launch gaps), whatever the batch.
    pass_us: microseconds a model pass takes outside its layers: sampling, launch, bookkeeping.
        A draft pass pays it too, and for a small draft it is a large part.
    """

    bandwidth: float = 0.80
    compute: float = 0.70
    layer_us: float = 15.0
    pass_us: float = 200.0

    def __post_init__(self) -> None:
        for name in ("bandwidth", "compute"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} efficiency must lie in (0, 1]", field=name)
        for name in ("layer_us", "pass_us"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be finite and not negative", field=name)


MEASURED_EFFICIENCY = Efficiency(bandwidth=1.0, compute=1.0, layer_us=350.0, pass_us=500.0)
"""For a machine whose figures were measured: they need no discount, but eager PyTorch on a CPU
spends about 0.35 ms a layer on dispatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. `fp8_tflops` 0 means that 8-bit weights run at 16-bit speed."""

    name: str
    label: str
    bandwidth_gb_s: float
    bf16_tflops: float
    fp8_tflops: float
    memory_gib: float
    link_gb_s: float
    link_latency_us: float
    source: str
    efficiency: Efficiency = field(default_factory=Efficiency)

    @property
    def bytes_per_second(self) -> float:
        """Memory bandwidth that we count on."""
        return self.bandwidth_gb_s * 1e9 * self.efficiency.bandwidth

    def flops_per_second(self, native_fp8: bool) -> float:
        """Arithmetic that we count on."""
        tflops = self.fp8_tflops if native_fp8 and self.fp8_tflops else self.bf16_tflops
        return tflops * 1e12 * self.efficiency.compute

    @property
    def memory_bytes(self) -> float:
        return self.memory_gib * GIB

    def allreduce_seconds(self, num_bytes: float, num_devices: int) -> float:
        """Time to sum a tensor over devices: a fixed latency and `2 (p - 1) / p` of its bytes."""
        if num_devices == 1:
            return 0.0
        volume = 2.0 * (num_devices - 1) / num_devices * num_bytes
        return self.link_latency_us * 1e-6 + volume / (self.link_gb_s * 1e9)


# Latency of a small allreduce: about 10 us over NVLink or Infinity Fabric with the one-shot
# kernels that serving engines use, about 25 us through PCIe. Assumptions, like Efficiency.
_FABRIC_US = 10.0
_PCIE_US = 25.0

_NVIDIA = "NVIDIA data sheet"
_AMD = "AMD data sheet"


def _device(
    name: str,
    label: str,
    bandwidth: float,
    bf16: float,
    fp8: float,
    memory: float,
    link: float,
    latency: float,
    source: str,
) -> Device:
    return Device(
        name=name,
        label=label,
        bandwidth_gb_s=bandwidth,
        bf16_tflops=bf16,
        fp8_tflops=fp8,
        memory_gib=memory,
        link_gb_s=link,
        link_latency_us=latency,
        source=source,
    )


# name, label, GB/s, dense BF16 TFLOPS, dense FP8 TFLOPS, memory, link GB/s one way, latency
DEVICES = {
    device.name: device
    for device in (
        _device("h100-sxm", "H100 SXM 80GB", 3350, 989, 1979, 80, 450, _FABRIC_US, _NVIDIA),
        _device("h100-pcie", "H100 PCIe 80GB", 2000, 756, 1513, 80, 64, _PCIE_US, _NVIDIA),
        _device("h200", "H200 141GB", 4800, 989, 1979, 141, 450, _FABRIC_US, _NVIDIA),
        _device("b200", "B200 180GB", 8000, 2250, 4500, 180, 900, _FABRIC_US, _NVIDIA),
        _device("a100-80", "A100 SXM 80GB", 2039, 312, 0, 80, 300, _FABRIC_US, _NVIDIA),
        _device("a100-40", "A100 SXM 40GB", 1555, 312, 0, 40, 300, _FABRIC_US, _NVIDIA),
        _device("l40s", "L40S 48GB", 864, 362, 733, 48, 32, _PCIE_US, _NVIDIA),
        _device("l4", "L4 24GB", 300, 121, 242, 24, 32, _PCIE_US, _NVIDIA),
        _device("a10g", "A10G 24GB", 600, 70, 0, 24, 32, _PCIE_US, _NVIDIA),
        _device("rtx4090", "RTX 4090 24GB", 1008, 165, 330, 24, 32, _PCIE_US, _NVIDIA),
        _device("rtx5090", "RTX 5090 32GB", 1792, 209.5, 419, 32, 64, _PCIE_US, _NVIDIA),
        _device("mi300x", "MI300X 192GB", 5300, 1307, 2615, 192, 448, _FABRIC_US, _AMD),
        _device("mi325x", "MI325X 256GB", 6000, 1307, 2615, 256, 448, _FABRIC_US, _AMD),
    )
}
_ALIASES = {
    "h100": "h100-sxm",
    "a100": "a100-80",
    "4090": "rtx4090",
    "5090": "rtx5090",
}


def device_from_numbers(text: str) -> Device:
    """A device from `bandwidth=28,tflops=0.15,memory=24` and, as they matter, `fp8_tflops`,
    `link` (GB/s one way) and `link_latency` (us)."""
    values = {
        "bandwidth": 0.0,
        "tflops": 0.0,
        "memory": 0.0,
        "fp8_tflops": 0.0,
        "link": 32.0,
        "link_latency": _PCIE_US,
    }
    for part in text.split(","):
        key, _, value = part.partition("=")
        key = key.strip().lower()
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if key not in values or not 0.0 <= number < math.inf:
            raise ConfigError(
                f"device: {part.strip()!r} is not one of {', '.join(values)} with a number",
                field="device",
            )
        values[key] = number
    for key in ("bandwidth", "tflops", "memory", "link"):
        if not values[key]:
            raise ConfigError(f"device: plain numbers need {key}= above 0", field="device")
    return _device(
        "given",
        "device from numbers",
        values["bandwidth"],
        values["tflops"],
        values["fp8_tflops"],
        values["memory"],
        values["link"],
        values["link_latency"],
        "given on the command line",
    )


def find_device(name: str) -> Device:
    """The device of that name, or of those numbers; raises ConfigError with all names if there
    is none."""
    if "=" in name:
        return device_from_numbers(name)
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    device = DEVICES.get(_ALIASES.get(key, key))
    if device is None:
        known = ", ".join([*DEVICES, "this-machine"])
        raise ConfigError(f"unknown device {name!r}; known: {known}", field="device")
    return device
