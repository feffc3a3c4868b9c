"""Every error that Paceline raises on purpose, in one tree.

    PacelineError
    +-- ConfigError           a setting, option or file is wrong; nothing was started
    |   +-- ModelError        a model folder cannot be served as asked
    |       +-- UnsupportedModelError     needs something that we would have to ignore
    |       +-- VocabularyMismatchError   target and draft give one token id two meanings
    +-- RequestError          one request is wrong; the connection and everybody else live on
    |   +-- ContextLengthError            prompt longer than context or block pool
    |   +-- QueueFullError                too many requests waiting
    +-- EngineError           the engine could not do its work
        +-- EngineBusyError               called from a thread that does not own it
        +-- EngineStoppedError            submitted after it stopped
        +-- NonFiniteLogitsError          the target gave NaN or infinity for one sequence

The wire's error codes are mapped from these classes once, in `server/session.py`.
"""

from __future__ import annotations


class PacelineError(Exception):
    """Root of the tree."""


class ConfigError(PacelineError):
    """A setting is wrong. `field` names it as the user wrote it."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ModelError(ConfigError):
    """A model cannot be served as asked; raised before its weights are read wherever possible."""


class UnsupportedModelError(ModelError):
    """The model needs a feature that would change its output if we left it out."""


class VocabularyMismatchError(ModelError):
    """Target and draft disagree about the meaning of a token id."""


class RequestError(PacelineError):
    """One request is wrong. `field` is its path in the request, `message` says what is right."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextLengthError(RequestError):
    """The prompt does not fit; the message holds both numbers."""


class QueueFullError(RequestError):
    """More requests wait than the server holds; try again later."""


class EngineError(PacelineError):
    """The engine could not do its work."""


class EngineBusyError(EngineError):
    """A method that belongs to the owner thread was called from another one."""


class EngineStoppedError(EngineError):
    """The engine has stopped and takes no more requests."""


class NonFiniteLogitsError(EngineError):
    """The target's logits for one sequence hold NaN, or nothing but minus infinity."""
