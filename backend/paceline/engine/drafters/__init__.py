"""Drafters: cheap proposers behind one interface."""
