"""The HTTP server behind `pymtp serve`; it needs the packages of the extra `server`.

A FastAPI application on uvicorn with four APIs: OpenAI's chat completions and completions (openai/), OpenAI's responses
(responses/) and Anthropic's messages (messages/). Each API converts the body of a request to a `GenerateRequest`
(pymtp/openai), passes that to `Service`, which runs it on the `AsyncLLM`, and converts the deltas of the output to its
own JSON or server-sent events.

Read app.py first (routes and middleware), then service.py (one request from admission to its last delta), then the
folder of one API: types.py (request and response models), read.py (conversion of the body to a chat), routes.py
(endpoints) and write.py (conversion of deltas to events). http/ has the HTTP code that all APIs share, metrics/ has
Prometheus and the logs, process/ has the two processes of `pymtp serve`, and static/ has the web pages.
"""
