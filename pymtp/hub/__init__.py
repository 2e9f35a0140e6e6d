"""Models from the Hugging Face hub. `pull` brings a file; huggingface_hub speaks with the hub and owns the cache."""
