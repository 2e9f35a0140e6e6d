"""The OpenAI API without HTTP, for batch files and the server: it reads request bodies and writes response bodies.

Begin with generate_request.py: a `GenerateRequest` is a client's request in any API (request_body.py reads one from a
request body), a `PreparedRequest` holds the prompt and params for an LLM, and an `Output` is one finished completion
(response_body.py writes outputs to a response body). batch.py runs files of requests.
"""
