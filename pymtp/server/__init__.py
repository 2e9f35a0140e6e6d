"""The HTTP server behind `pymtp serve`; it needs the packages of the extra `server`.

A FastAPI application on uvicorn with four APIs: OpenAI's chat completions and completions (openai/), OpenAI's responses
(responses/) and Anthropic's messages (messages/). Each API reads the body of a request into a `GenerateRequest`
(pymtp/openai), passes that to `Service`, which runs it on the `AsyncLLM`, and writes the deltas of the output as JSON
or server-sent events of its own.

Read app.py first (routes and middleware), then service.py (one request from admission to its last delta), then the
folder of one API: types.py (request models, and the types of answers), read.py (what a body means), routes.py
(endpoints) and write.py or chunks.py (events of a stream). event_response.py answers /v1/messages and /v1/responses.
info.py has the routes about the server. http/ has the HTTP code that all APIs share, metrics/ has Prometheus and the
logs, process/ has the two processes of `pymtp serve`, and static/ has the web pages.
"""
