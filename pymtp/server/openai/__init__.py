"""/v1/chat/completions, /v1/completions and /v1/models: OpenAI's APIs with extensions of llama.cpp and vLLM."""
