"""Models of the Hugging Face hub: huggingface_hub talks to the hub and defines the cache, `file_download` downloads."""
