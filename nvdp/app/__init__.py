"""Composition roots: the only modules that name every concrete class."""
