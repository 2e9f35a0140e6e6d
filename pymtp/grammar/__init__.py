"""Grammars: JSON schemas and regular expressions as GBNF."""
