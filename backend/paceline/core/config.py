"""The settings of a server: what the user wrote, and what was decided from it.

`ServeConfig` is what flags and a TOML file say; None there means "choose for me". `resolve` decides
every such choice once, from facts about the machine and the models, and gives an `EngineConfig`
without any.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError
from paceline.core.request import DrafterKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_SPECULATIVE_TOKENS = 16


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def num_bytes(self) -> int:
        """Bytes of one number; AUTO has none."""
        if self is Dtype.AUTO:
            raise ConfigError("dtype auto has no size yet", field="dtype")
        return 4 if self is Dtype.FLOAT32 else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """What `paceline serve` was asked for. Field names are the keys of the TOML file, and with
    dashes the flags.

    target, draft: a folder, a GGUF file or a hub id. None is the default target; for the draft it
    is the one shipped for the default target, else none.
    drafter: which drafters may run at all; requests choose within that.
    num_speculative_tokens: the most tokens drafted for a sequence in one step.
    min_acceptance: where a session's acceptance falls below, nothing is drafted for it until a
    probe finds 0.1 more. 0 leaves the choice to measured cost alone, which pays where draft and
    verification are nearly free.
    max_model_len: tokens of prompt and answer together; None takes all that the target's positions
    allow.
    threads: that compute on a CPU; by default all cores, less one for the sockets from four on.
    cuda_graphs: record passes of few rows at the start and play them back, which saves launching
    their kernels one by one; CUDA only.
    deterministic: equal requests get equal answers whatever runs beside them; every step costs as
    much as a full one then, and `paceline serve` prints how much that is.
    fast_path: replace what is recognised in a model by faster equivalents, proven at load.
    kv_memory: bytes for the K/V of both models, written as a number or like "2GiB".
    max_sequences: sequences computed in one step. token_budget: tokens computed in one step.
    max_queued: requests that may wait, over all connections.
    api_key: clients must send it. admin_key: opens the server's own telemetry.
    allowed_origins: web pages, beside the server's own, that may connect.
    max_message_bytes: larger frames close their connection. max_lanes: requests that one connection
    may have at once. max_stored_tokens: what one connection may keep for `previous_response_id`.
    send_deadline_s: how long a client may read nothing. grace_period_s: how long running answers
    may go on after SIGTERM.
    allow_forced_speculation: whether requests may ask for `speculation: "on"`, which bypasses gates
    and ledger and so may cost everybody time.
    log_prompts: write prompts and answers into the log.

    Raises ConfigError naming the field and what would be right.
    """

    target: str | None = None
    draft: str | None = None
    drafter: DrafterKind = DrafterKind.AUTO
    device: Device = Device.AUTO
    dtype: Dtype = Dtype.AUTO
    num_speculative_tokens: int | None = None
    min_acceptance: float = 0.4
    max_model_len: int | None = None
    threads: int | None = None
    fast_path: bool = True
    deterministic: bool = False
    cuda_graphs: bool = False
    kv_memory: int | None = None
    max_sequences: int = 32
    token_budget: int | None = None
    block_size: int = 16
    max_queued: int = 256
    host: str = "127.0.0.1"
    port: int = 8765
    api_key: str | None = None
    admin_key: str | None = None
    allowed_origins: tuple[str, ...] = ()
    max_message_bytes: int = 1 << 20
    max_connections: int = 1024
    max_lanes: int = 16
    max_stored_tokens: int = 65536
    send_deadline_s: float = 30.0
    grace_period_s: float = 30.0
    allow_forced_speculation: bool = True
    log_level: str = "info"
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(
                    f"{name} is {value}; it must be from {least} to {most}", field=name
                )
        for name in ("target", "draft", "api_key", "admin_key", "host"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} is empty; leave it out or give a value", field=name)
        if self.block_size & (self.block_size - 1):
            raise ConfigError(
                f"block_size is {self.block_size}; it must be a power of two", field="block_size"
            )
        if self.log_level not in _LOG_LEVELS:
            raise ConfigError(
                f"log_level is {self.log_level!r}; it must be one of {', '.join(_LOG_LEVELS)}",
                field="log_level",
            )
        for origin in self.allowed_origins:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ConfigError(
                    f"allowed_origins holds {origin!r}; an origin is a scheme, a host and maybe a "
                    "port, like https://chat.example.org",
                    field="allowed_origins",
                )

    @classmethod
    def load(cls, path: Path | None, flags: Mapping[str, Any]) -> ServeConfig:
        """Settings of a TOML file, overridden by flags.

        flags: by field name; None means that the flag was not given. Raises ConfigError for a file
        that cannot be read, an unknown key and a value that cannot be. What is wrong in the file is
        an error that names the file, even where a flag overrides it.
        """
        values = {} if path is None else _read_toml(path)
        try:
            in_file = cls.of(values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}", field=error.field) from None
        given = {name: value for name, value in flags.items() if value is not None}
        return dataclasses.replace(in_file, **_converted(given))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ServeConfig:
        """Settings from plain values, checked. Raises ConfigError as `load` does."""
        return cls(**_converted(values))


_LOG_LEVELS = ("debug", "info", "warning", "error")
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("num_speculative_tokens", 0, MAX_SPECULATIVE_TOKENS),
    ("min_acceptance", 0.0, 0.9),
    ("max_model_len", 2, 1 << 24),
    ("threads", 1, 1024),
    ("kv_memory", 1, 1 << 50),
    ("max_sequences", 1, 4096),
    ("token_budget", 1, 1 << 20),
    ("block_size", 1, 1024),
    ("max_queued", 0, 1 << 20),
    ("port", 0, 65535),
    ("max_message_bytes", 1024, 1 << 30),
    ("max_connections", 1, 1 << 20),
    ("max_lanes", 1, 4096),
    ("max_stored_tokens", 0, 1 << 30),
    ("send_deadline_s", 0.1, 86400),
    ("grace_period_s", 0, 86400),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What `resolve` decides by.

    has_cuda: a CUDA device is usable. has_fast_bfloat16: the CPU has bfloat16 instructions.
    target_dtype: what the target's weights are stored in. target_max_len: positions that the target
    computes correctly. has_draft_model: a draft model was given or belongs to the target.
    num_cores: that the process may use.
    """

    has_cuda: bool
    has_fast_bfloat16: bool
    target_dtype: Dtype
    target_max_len: int
    has_draft_model: bool
    num_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Every choice made; the meaning of the fields is that of `ServeConfig`."""

    device: Device
    dtype: Dtype
    drafter: DrafterKind
    num_speculative_tokens: int
    max_model_len: int
    max_sequences: int
    token_budget: int
    block_size: int
    max_queued: int
    threads: int
    fast_path: bool
    min_acceptance: float = 0.4
    deterministic: bool = False
    cuda_graphs: bool = False


def check_alone(config: ServeConfig) -> None:
    """What can be found wrong between settings before anything is known of machine and models.

    Raises ConfigError for a budget too small for one token a sequence, CUDA graphs on a CPU, and a
    model drafter where a target of one's own has no draft.
    """
    token_budget = config.token_budget
    if token_budget is not None and token_budget < config.max_sequences:
        raise ConfigError(
            f"token_budget is {token_budget}; it must be at least max_sequences, which is "
            f"{config.max_sequences}, so that every running answer advances in every step",
            field="token_budget",
        )
    if config.cuda_graphs and config.device is not Device.AUTO:
        _check_graphs(config.device)
    if config.drafter is DrafterKind.MODEL and config.target is not None and config.draft is None:
        raise _no_draft_model()


def _check_graphs(device: Device) -> None:
    if device is not Device.CUDA:
        raise ConfigError(
            f"cuda_graphs is on, but the device is {device}; leave it out", field="cuda_graphs"
        )


def _no_draft_model() -> ConfigError:
    return ConfigError(
        "drafter is model, but there is no draft model; name one with --draft", field="draft"
    )


def resolve(config: ServeConfig, facts: Facts) -> EngineConfig:
    """Decides every automatic choice.

    device: CUDA where there is one. dtype: as stored on CUDA; on a CPU bfloat16 if it computes in
    it, else float32. num_speculative_tokens: 16, since what is drafted below that is decided for
    each step by measured cost. token_budget: 256 on a CPU, whose steps are
    compute-bound from some rows on, 2048 on CUDA. threads: one for each core; from four cores on
    one is left to the event loop.

    Raises ConfigError as `check_alone` does, and for a device that is not there, a length beyond
    the target's, and a model drafter without a draft model.
    """
    check_alone(config)
    if config.device is Device.CUDA and not facts.has_cuda:
        raise ConfigError("device is cuda, but torch finds no CUDA device", field="device")
    device = config.device
    if device is Device.AUTO:
        device = Device.CUDA if facts.has_cuda else Device.CPU
    if config.cuda_graphs:
        _check_graphs(device)
    dtype = config.dtype
    if dtype is Dtype.AUTO:
        if device is Device.CUDA:
            dtype = facts.target_dtype
        else:
            dtype = Dtype.BFLOAT16 if facts.has_fast_bfloat16 else Dtype.FLOAT32
    max_model_len = config.max_model_len or facts.target_max_len
    if max_model_len > facts.target_max_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}; the target is exact up to {facts.target_max_len}",
            field="max_model_len",
        )
    if config.drafter is DrafterKind.MODEL and not facts.has_draft_model:
        raise _no_draft_model()
    token_budget = config.token_budget
    if token_budget is None:
        usual = 2048 if device is Device.CUDA else 256
        token_budget = max(usual, config.max_sequences)
    num_speculative_tokens = config.num_speculative_tokens
    if num_speculative_tokens is None:
        is_off = config.drafter is DrafterKind.NONE
        num_speculative_tokens = 0 if is_off else MAX_SPECULATIVE_TOKENS
    return EngineConfig(
        device=device,
        dtype=dtype,
        drafter=config.drafter,
        num_speculative_tokens=num_speculative_tokens,
        max_model_len=max_model_len,
        max_sequences=config.max_sequences,
        token_budget=token_budget,
        block_size=config.block_size,
        max_queued=config.max_queued,
        threads=config.threads or facts.num_cores - (facts.num_cores >= 4),
        fast_path=config.fast_path,
        min_acceptance=config.min_acceptance,
        deterministic=config.deterministic,
        cuda_graphs=config.cuda_graphs,
    )


_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}


def parse_bytes(text: str, field: str) -> int:
    """ "2GiB", "500 MB" or "1048576" as bytes. Raises ConfigError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(
            f"{field} is {text!r}; it must be a number of bytes or a size like 512MiB or 2GiB",
            field=field,
        )
    return int(float(match[1]) * unit)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be read: {reason}", field="config") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", field="config") from error
    for name, value in values.items():
        if isinstance(value, dict) or (isinstance(value, list) and any(map(_is_table, value))):
            raise ConfigError(
                f"{path} holds a table, [{name}]: there are no tables, write the keys at the top "
                "level",
                field=name,
            )
    return values


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _converted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values by field name as the fields' types. Raises ConfigError for an unknown name."""
    known = {field.name: str(field.type) for field in dataclasses.fields(ServeConfig)}
    converted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
            raise ConfigError(f"unknown setting {name!r}{hint}", field=name)
        converted[name] = _convert(name, known[name], value)
    return converted


def _convert(name: str, declared: str, value: Any) -> Any:
    """A plain value as the field's type, or a ConfigError that says what the type is."""
    kind = declared.removesuffix(" | None")
    if name == "kv_memory" and isinstance(value, str):
        return parse_bytes(value, name)
    enum = _ENUMS.get(kind)
    if enum is not None:
        try:
            return enum(value)
        except ValueError:
            allowed = ", ".join(enum)
            raise ConfigError(
                f"{name} is {value!r}; it must be one of {allowed}", field=name
            ) from None
    types, words = _PLAIN[kind]
    is_right = isinstance(value, types) and (kind == "bool" or not isinstance(value, bool))
    if kind == "tuple[str, ...]" and is_right:
        is_right = all(isinstance(entry, str) for entry in value)
        value = tuple(value)
    if not is_right:
        raise ConfigError(f"{name} is {value!r}; it must be {words}", field=name)
    return value


_ENUMS: dict[str, type[StrEnum]] = {"DrafterKind": DrafterKind, "Device": Device, "Dtype": Dtype}
_PLAIN: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "tuple[str, ...]": ((list, tuple), "a list of texts"),
}
