"""The engine: it runs many requests at the same time on one context, with continuous batching and drafts.

Read its modules in this order. `engine.Engine.step` is one iteration: it admits requests, prefills a share of their
prompts, and runs one round of all sequences that decode. `scheduler` decides which request gets a sequence. `prefill`
brings a prompt from the prefix cache to its first token. `rounds` is the loop of speculative decoding (draft, verify,
accept, rewind), with the depth that `batch_depth` chooses; `closing` ends thinking blocks. `request` is the state of a
request and its output, and `text` turns its tokens into text. The engine has no thread of its own: in `thread`, the
threads that wait for requests take turns to run it, and `async_thread` has the thread that runs it for coroutines.
`stream`, `collect` and `prefix_files` belong to the LLM, which uses the engine.
"""
