"""Grammars: JSON schemas and regular expressions as GBNF, the notation of llama.cpp's grammars.

Begin with json_schema.py: `schema_grammar` converts a schema, with regex.py for its patterns and rules.py for the
grammar rules that the conversion makes. relax.py weakens the schemas of tools until a grammar can express them.

llama.cpp's parser parses the GBNF. The code that finds the tokens that a grammar allows next is our own
(pymtp/native/runtime/grammar.cpp), for two reasons. It can start from any prefix of the output, so that a rejected
draft need not be undone; the state of llama.cpp's grammar sampler only moves forward. And its time and memory are
bounded for every grammar.
"""
