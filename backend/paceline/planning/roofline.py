"""How long a pass of a model takes on a device: the larger of moving bytes and doing sums.

A pass over N rows (tokens) of B sequences costs

    linear     max(weight bytes / bandwidth, 2 N parameters / arithmetic)
    attention  max(K/V bytes / bandwidth, QK and PV operations / arithmetic)
    fixed      a small time for each layer, one for the pass, two allreduces for each layer

one after the other, because that is how they run. At batch 1 the first term is the weights'
bytes alone, whether N is 1 or 6: that is why verifying draft tokens is almost free, and where
it stops being free is where 2 N parameters of arithmetic take longer than the weights' bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.planning.devices import Device
    from paceline.planning.precision import Precision
    from paceline.planning.shape import ModelShape

_ACTIVATION_BYTES = 2  # an activation is 16 bits wide, whatever the weights are


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of one pass, by cause. `weight_bytes` and `kv_bytes` are what one device reads."""

    linear_memory: float
    linear_compute: float
    attention_memory: float
    attention_compute: float
    layers: float
    allreduce: float
    fixed: float
    weight_bytes: float
    kv_bytes: float

    @property
    def seconds(self) -> float:
        return (
            max(self.linear_memory, self.linear_compute)
            + max(self.attention_memory, self.attention_compute)
            + self.layers
            + self.allreduce
            + self.fixed
        )

    @property
    def compute_bound(self) -> bool:
        """True if the matrix products take longer than reading the weights."""
        return self.linear_compute > self.linear_memory


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model in a number format on some devices of one kind, split by tensor parallelism.

    Each device holds 1/p of every layer, of the embedding and of the head. K/V heads are split
    too, and repeated where there are fewer heads than devices.
    """

    shape: ModelShape
    precision: Precision
    device: Device
    num_devices: int = 1
    kv_element_bytes: int = 2

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ConfigError("devices must be at least 1", field="devices")
        if self.shape.num_heads % self.num_devices:
            raise ConfigError(
                f"{self.shape.name} has {self.shape.num_heads} attention heads, which "
                f"{self.num_devices} devices cannot share evenly",
                field="devices",
            )

    # ------------------------------------------------------------------ memory

    @property
    def body_bytes_per_param(self) -> float:
        return self.precision.bytes_per_param

    @property
    def outer_bytes_per_param(self) -> float:
        """Embedding and head: 16 bits at least, see `Precision`."""
        return max(self.precision.bytes_per_param, 2.0)

    @property
    def stored_bytes(self) -> float:
        """Weights on all devices together."""
        shape = self.shape
        body = (shape.always_on_params + shape.routed_params) * self.body_bytes_per_param
        outer = 0 if shape.shares_embedding else shape.embedding_params
        outer += shape.head_params if shape.has_own_head else 0
        return body + outer * self.outer_bytes_per_param

    @property
    def stored_bytes_per_device(self) -> float:
        return self.stored_bytes / self.num_devices

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token on all devices together, counted once."""
        return self.shape.kv_elements_per_token() * self.kv_element_bytes

    @property
    def kv_bytes_per_token_per_device(self) -> float:
        """Keys and values of one token on one device."""
        return self.kv_bytes_per_token / min(self.num_devices, self.shape.num_kv_heads)

    # ------------------------------------------------------------------ time

    def read_bytes(self, rows: int) -> float:
        """Weight bytes that a pass of `rows` rows reads on all devices: of experts, only those
        that some row chose; of the embedding, only the rows' own vectors (left out)."""
        shape = self.shape
        body: float = shape.always_on_params
        body += shape.num_expert_layers * shape.touched_experts(rows) * shape.expert_params
        return body * self.body_bytes_per_param + shape.head_params * self.outer_bytes_per_param

    def pass_cost(self, rows: int, batch: int, context: int) -> PassCost:
        """Cost of one pass.

        Args:
            rows: tokens computed, all sequences together.
            batch: sequences; each one's K/V is read once, however many rows it has.
            context: tokens of K/V that every sequence has.
        """
        shape, device, split = self.shape, self.device, self.num_devices
        efficiency = device.efficiency
        bandwidth = device.bytes_per_second
        flops = device.flops_per_second(self.precision.native_fp8)
        attention_rate = device.flops_per_second(False)

        weight_bytes = self.read_bytes(rows) / split
        kv_bytes = batch * shape.attended_tokens(context) * self.kv_bytes_per_token_per_device
        message = rows * shape.hidden_size * _ACTIVATION_BYTES
        return PassCost(
            linear_memory=weight_bytes / bandwidth,
            linear_compute=2.0 * rows * shape.active_params / split / flops,
            attention_memory=kv_bytes / bandwidth,
            attention_compute=shape.attention_flops(rows, context) / split / attention_rate,
            layers=shape.num_layers * efficiency.layer_us * 1e-6,
            allreduce=2 * shape.num_layers * device.allreduce_seconds(message, split),
            fixed=efficiency.pass_us * 1e-6,
            weight_bytes=weight_bytes,
            kv_bytes=kv_bytes,
        )

    def decode_seconds(self, batch: int, context: int) -> float:
        """Time of one plain step: a row for each of `batch` sequences."""
        return self.pass_cost(batch, batch, context).seconds

    def prefill_seconds(self, tokens: int) -> float:
        """Time to compute a prompt of `tokens` tokens of one sequence in one pass."""
        return self.pass_cost(tokens, 1, tokens // 2).seconds
