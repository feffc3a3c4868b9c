"""Where a model's files are: a folder, a GGUF file, or a repository of the Hugging Face hub."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import ModelError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_METADATA = ["*.json", "*.jinja", "*.model", "*.txt"]
_SAFETENSORS = ["*.safetensors"]
_PICKLED = ["*.bin"]
# Under one of these names, whatever the family.
_TOKENIZERS = ("*token*", "*vocab*", "*.model", "*.tiktoken", "tekken.json")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's files on this machine.

    folder: holds them. gguf_file: the file in it when it is a GGUF. hub_id: where weights that are
    not here yet come from. name: for people.
    """

    folder: Path
    name: str
    gguf_file: str | None = None
    hub_id: str | None = None

    @property
    def tokenizer_path(self) -> Path:
        """What `TextCodec.load` takes."""
        return self.folder if self.gguf_file is None else self.folder / self.gguf_file


def find_source(spec: str, *, field: str = "target") -> ModelSource:
    """Finds a model by folder, GGUF file or hub id and makes its small files local, not its
    weights.

    field: the setting that `spec` comes from, for messages. Raises ModelError in one line.
    """
    local = find_local(spec, field=field)
    if local is not None:
        return local
    folder = _fetch(spec, _METADATA, field)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{field} {spec} on the hub has no config.json", field=field)
    _check_configuration(folder, field)
    return ModelSource(folder, spec.rpartition("/")[2], hub_id=spec)


def find_local(spec: str, *, field: str) -> ModelSource | None:
    """What `find_source` finds on this machine, in no time; None for what may be a hub id.

    Raises ModelError in one line for what can be neither, and for a config.json that is broken.
    """
    path = Path(spec).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(
                f"{field} {spec} is a file but no .gguf; give the model's folder", field=field
            )
        return ModelSource(path.parent.resolve(), path.stem, gguf_file=path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{field} {spec} is no model folder: it has no config.json", field=field
            )
        _check_configuration(path, field)
        return ModelSource(path.resolve(), path.resolve().name)
    if not _HUB_ID.fullmatch(spec):
        raise ModelError(f"{field} {spec} does not exist", field=field)
    return None


def check_local(source: ModelSource, *, field: str) -> None:
    """Sees what is plainly wrong with a model on this machine, without reading it or importing
    anything heavy. A draft of our own (`paceline distill`) needs weights alone, any other folder a
    tokenizer too.

    source: from `find_local`. Raises ModelError naming what is missing.
    """
    folder = source.folder
    if source.gguf_file is not None:
        with (folder / source.gguf_file).open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(
                    f"{field} {folder / source.gguf_file} is no GGUF file, whatever its name says",
                    field=field,
                )
        return
    is_own_draft = str(_read_configuration(folder).get("format")).startswith("paceline-draft")
    if not is_own_draft and not any(any(folder.glob(name)) for name in _TOKENIZERS):
        raise ModelError(
            f"{field} {folder} has no tokenizer that can be read: there is no tokenizer.json, and "
            "nothing of an older format",
            field=field,
        )
    fetch_weights(source, field=field)


def _check_configuration(folder: Path, field: str) -> None:
    try:
        _read_configuration(folder)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{field} {folder} has a config.json that cannot be read: {error}", field=field
        ) from error


def _read_configuration(folder: Path) -> dict[str, Any]:
    """Raises OSError, or ValueError for what is no JSON object."""
    value = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def fetch_weights(source: ModelSource, *, field: str = "target") -> None:
    """Makes sure that the weights are there, whole, before anything reads them.

    Downloads those of a hub model (with hub progress bars); a second start finds them in its cache.
    Raises ModelError naming the first missing file.
    """
    if source.gguf_file is not None:
        return
    if source.hub_id is not None and not _has_weights(source.folder):
        _fetch(source.hub_id, _SAFETENSORS, field)
        if not _has_weights(source.folder):
            _fetch(source.hub_id, _PICKLED, field)
    missing = _missing_weights(source.folder)
    if missing is not None:
        raise ModelError(f"{field} {source.folder} has no {missing}", field=field)


def _has_weights(folder: Path) -> bool:
    return _missing_weights(folder) is None


def _missing_weights(folder: Path) -> str | None:
    """The first weight file that is not there, None when all are."""
    for whole in ("model.safetensors", "pytorch_model.bin"):
        if (folder / whole).is_file():
            return None
        index = folder / f"{whole}.index.json"
        if not index.is_file():
            continue
        try:
            files = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is broken: {error!r}") from error
        return next((name for name in files if not (folder / name).is_file()), None)
    return "model.safetensors (weights)"


def _fetch(hub_id: str, patterns: list[str], field: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except GatedRepoError as error:
        reason = "it is gated: accept its terms on the hub and log in with `hf auth login`"
        raise ModelError(f"{field} {hub_id} cannot be fetched: {reason}", field=field) from error
    except RepositoryNotFoundError as error:
        reason = "there is no such folder here and no such public model on the hub"
        raise ModelError(f"{field} {hub_id} cannot be found: {reason}", field=field) from error
    except (LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = "there is no such folder here, it is not in the hub's cache, and the hub does not "
        raise ModelError(
            f"{field} {hub_id} cannot be found: {reason}answer", field=field
        ) from error
