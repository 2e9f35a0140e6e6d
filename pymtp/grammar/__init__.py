"""Grammars: JSON schemas and regular expressions as GBNF, the notation of llama.cpp's grammars.

Begin with json_schema.py: `schema_grammar` converts a schema, with regex.py for its patterns and rules.py for the rules
of the result. relax.py weakens the schemas of tools until a grammar can express them.

llama.cpp's parser reads the text of a grammar. The walk through it, which tells the tokens that may follow, is our own
(pymtp/native/runtime/grammar.cpp): it can go to any prefix, so that a rejected draft leaves no trace, where llama.cpp's
sampler has one state that only moves on with the text; and its time and memory are bounded, whatever the grammar.
"""
