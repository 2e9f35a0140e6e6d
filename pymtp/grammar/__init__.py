"""Grammars: JSON schemas and regular expressions as GBNF, the notation of llama.cpp's grammars.

Begin with json_schema.py: `schema_grammar` converts a schema. merge.py turns schemas that combine others into plain
ones, and strings.py, numbers.py, arrays.py and objects.py write the rules of each type. Where several conditions hold
for one string or number, such as a pattern and a length, automaton.py makes the rules. keywords.py knows what the
keywords mean, and reports those that no grammar can express.

llama.cpp's parser parses the GBNF. The code that finds the tokens that a grammar allows next is our own
(pymtp/native/runtime/grammar.cpp), for two reasons. It can start from any prefix of the output, so that a rejected
draft need not be undone; the state of llama.cpp's grammar sampler only moves forward. And its time and memory are
bounded for every grammar.
"""
