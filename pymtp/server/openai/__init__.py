"""The routes of OpenAI's chat completions, completions and models, with extensions of llama.cpp and vLLM."""
