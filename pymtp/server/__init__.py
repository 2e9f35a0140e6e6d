"""The HTTP server behind `pymtp serve`; it needs the packages of the extra `server`.

A FastAPI application on uvicorn with four APIs: OpenAI's chat completions and completions (openai/), OpenAI's responses
(responses/) and Anthropic's messages (messages/). Each API turns its body into a `GenerateRequest` (pymtp/openai), has
`Service` run it on the `AsyncLLM`, and turns the deltas into its own JSON or server-sent events.

Read app.py first (routes and middleware), then service.py (one request from admission to its last delta), then one API:
its types.py (request and response models), read.py (body to chat), routes.py (endpoints) and write.py (deltas to
events). http/ has the parts that know HTTP but no API, metrics/ has Prometheus and the logs, process/ has the two
processes of `pymtp serve`, and static/ has the web pages.
"""
