"""The engine: it runs many requests at the same time on one context, with continuous batching and drafts.

Read its modules in this order. `engine.Engine.step` is one iteration: it admits requests, prefills a share of their
prompts, and runs one round of all sequences that decode. `scheduler` decides which request gets a sequence. `runner`
brings a prompt from the prefix cache to its first token, runs the rounds, and ends or restarts requests. `rounds` is
the loop of speculative decoding (draft, verify, accept, rewind), with the depth that `batch_depth` chooses; `closing`
ends thinking blocks. `request` is the state of a request and its output, and `text` turns its tokens into text.
`thread` is the thread that runs the engine of an LLM. `prepare`, `stream` and `prefix_files` are the sides of the
LLM's methods: they make requests from prompts, and hand out what the requests generate.
"""
