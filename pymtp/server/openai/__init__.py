"""/v1/chat/completions, /v1/completions and /v1/models: OpenAI's APIs, with what llama.cpp's and vLLM's clients add."""
