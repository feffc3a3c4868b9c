"""`python -m paceline` is the command `paceline`."""

from __future__ import annotations

from paceline.cli import main

main()
