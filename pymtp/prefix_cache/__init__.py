"""The prefix cache, which lets prompts reuse K, V and recurrent states of earlier prompts. Read cache.py first.

`PrefixCache` (cache.py) decides from which cached prefix a prompt continues, and where prefill takes checkpoints. The
cached data lie in the sequences of a context and in host memory (store.py). A radix tree (tree.py) finds them.
checkpoints.py decides where states are taken, and which of them leave host memory. save.py and load.py write and read
prefix files, whose format is described in file.py.
"""
