from __future__ import annotations

from typing import Any

import pytest

from paceline_lsp.settings import Settings, SettingsError


def test_fields_change_one_by_one() -> None:
    settings = Settings().changed({"debounceMs": 10}).changed({"maxLines": 3, "url": None})
    assert (settings.debounce_ms, settings.max_lines) == (10, 3)
    assert settings.url == Settings().url
    assert settings.changed(None) is settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"debounceMs": -1}, "debounceMs: expected `int` >= 0"),
        ({"debounceMs": "soon"}, "debounceMs: expected `int`, got `str`"),
        ({"multiline": "maybe"}, "multiline: invalid enum value 'maybe'"),
        ({"debounce": 1}, "unknown field `debounce`; known are url, apiKey"),
        ([], "the settings must be an object"),
    ],
)
def test_what_is_wrong_is_named(given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings().changed(given)


def test_languages_can_be_left_out() -> None:
    settings = Settings(disabled_languages=["markdown"])
    assert settings.serves("python")
    assert not settings.serves("markdown")
    assert not Settings(enabled=False).serves("python")
