"""Load against a running server, and what came of it. Sees servers from outside, over a socket."""
