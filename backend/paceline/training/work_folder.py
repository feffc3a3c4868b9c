"""The folder in which a draft is made: where its parts lie, and how far the work has come."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.model.draft_folder import DraftTarget


class WorkFolder:
    """Of one target and one kind of draft.

    ``spent``: seconds used in the phases "data" and "training", by all runs. ``files``: answer
    files whose contents were taken. Both are kept by :meth:`save`.

    Raises ConfigError when the folder belongs to another target or kind.
    """

    def __init__(self, folder: Path, target: DraftTarget, kind: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._state = folder / "distill.json"
        self._identity = {"target": asdict(target), "kind": kind}
        self.tokens = folder / "tokens"
        self.checkpoint = folder / "checkpoint.pt"
        self.output_ids = folder / "output_ids.json"
        self.spent = {"data": 0.0, "training": 0.0}
        self.files: list[str] = []
        if self._state.exists():
            self._load()

    def states_of(self, tokens: Path) -> Path:
        """Where the target's states of a token shard lie, or will."""
        return tokens.with_name(tokens.name.replace("tokens-", "states-"))

    def save(self) -> None:
        """Write how far the work has come, whole or not at all."""
        state = {**self._identity, "spent": self.spent, "files": self.files}
        partial = self._state.with_name(self._state.name + ".partial")
        partial.write_text(json.dumps(state, indent=1), encoding="utf-8")
        partial.replace(self._state)

    def _load(self) -> None:
        state = json.loads(self._state.read_text(encoding="utf-8"))
        for name, value in self._identity.items():
            if state.get(name) != value:
                raise ConfigError(
                    f"{self._state.parent} holds work on a draft for another {name} "
                    f"({state.get(name)}); choose another folder with --work",
                    field="work",
                )
        self.spent = dict(state["spent"])
        self.files = list(state["files"])
