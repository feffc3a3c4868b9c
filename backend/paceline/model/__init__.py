"""Loading causal language models and running them over ragged, paged attention."""
