"""The prefix cache, which lets prompts reuse K, V and recurrent states of earlier prompts; begin with cache.py.

`PrefixCache` (cache.py) decides where a prompt continues and where it takes checkpoints. The cached data lies in the
sequences of a context and in host memory (store.py), found by a radix tree (tree.py) and evicted by eviction.py.
Prefix files: save.py and load.py, in the format of file.py.
"""
