"""`python -m paceline_lsp`, the same as `paceline lsp`."""

from paceline_lsp.command import app

app(prog_name="paceline lsp")
