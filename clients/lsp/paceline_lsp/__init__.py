"""Editor completions from a Paceline server, as a language server. Run it with `paceline lsp`."""
