"""The paths of Ollama's API: chats, completions, embeddings, and what clients ask about the model."""
