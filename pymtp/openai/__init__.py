"""The OpenAI API without HTTP, for batch files and the server: bodies become requests, and outputs become bodies.

Begin with generate_request.py: a `GenerateRequest` is what any API asks for (request_body.py reads one from a body), a
`PreparedRequest` is what an LLM takes, and an `Output` is one finished text (response_body.py writes them to a body).
batch.py runs files of requests.
"""
