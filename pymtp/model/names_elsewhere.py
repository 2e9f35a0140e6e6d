"""Names of options of a model and its context in llama-cpp-python, vLLM, transformers and llama.cpp.

The table maps a name to an option of LLM, or to words on what to do instead. It is for
messages alone: calls of Python take no keyword under two names.
"""

from __future__ import annotations

from collections.abc import Mapping

_BY_ITSELF = "pymtp chooses that by the model's file"
_DRAFTS = 'draft_tokens for drafts of the head, and draft_text for drafts from the text (method "ngram")'
_LOOKUP = 'draft_text="auto" chooses by itself how long a match in the text must be'
_ONE_PROCESS = "an LLM is one process: n_gpu_layers, tensor_split and split_mode place the model"

OPTION_NAMES_ELSEWHERE: Mapping[str, str] = {
    "block_size": "the memory of a sequence is not in blocks",
    "cache_ram": "cache_bytes",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
    "chat_format": "chat_template",
    "chat_handler": "mmproj for images, and chat_template",
    "clip_model_path": "mmproj",
    "ctx_size": "n_ctx",
    "context_length": "n_ctx",
    "cpu_offload_gb": "n_gpu_layers",
    "data_parallel_size": _ONE_PROCESS,
    "device_map": "n_gpu_layers",
    "draft_model": "head for a file with a head, and draft_text for LlamaPromptLookupDecoding",
    "dtype": _BY_ITSELF,
    "embedding": "every LLM has embed()",
    "embeddings": "every LLM has embed()",
    "enable_lora": "lora",
    "enable_prefix_caching": "cache_prompt",
    "gpu_layers": "n_gpu_layers",
    "gpu_memory_utilization": "n_ctx and n_seq_max say how much memory an LLM takes",
    "kv_cache_dtype": "type_k",
    "kv_overrides": "the values of the model's file hold",
    "limit_mm_per_prompt": "a chat may have 64 images",
    "load_format": _BY_ITSELF,
    "logits_all": "prompt_logprobs of a call, or Context.prefill_logits",
    "lora_base": "lora",
    "lora_modules": "lora",
    "lora_path": "lora",
    "lora_paths": "lora",
    "lora_scale": "lora",
    "lookup_cache_dynamic": "draft_text",
    "lookup_cache_static": "draft_text",
    "max_batch_size": "n_seq_max",
    "max_matching_ngram_size": _LOOKUP,
    "max_model_len": "n_ctx",
    "max_num_batched_tokens": "n_batch",
    "max_num_seqs": "n_seq_max",
    "max_seq_len": "n_ctx",
    "mm_processor_kwargs": "image_min_tokens and image_max_tokens",
    "mmproj_path": "mmproj",
    "mmproj_use_gpu": "mmproj_offload",
    "mtp": "draft_tokens",
    "model_id": "model",
    "model_name": "model",
    "model_path": "model",
    "n_draft": "draft_tokens",
    "n_parallel": "n_seq_max",
    "n_threads_batch": "n_threads",
    "ngl": "n_gpu_layers",
    "ngram_prompt_lookup_max": "draft_text",
    "ngram_prompt_lookup_min": _LOOKUP,
    "num_ctx": "n_ctx",
    "num_gpu": "n_gpu_layers",
    "num_pred_tokens": "draft_text",
    "num_speculative_tokens": "draft_tokens",
    "num_threads": "n_threads",
    "parallel": "n_seq_max",
    "pipeline_parallel_size": _ONE_PROCESS,
    "prompt_lookup_max": "draft_text",
    "prompt_lookup_min": _LOOKUP,
    "prompt_lookup_num_tokens": "draft_text",
    "quantization": _BY_ITSELF,
    "repo_id": "from_pretrained takes a repository",
    "rope_scaling_type": "rope_scaling",
    "spec_type": _DRAFTS,
    "speculative_config": _DRAFTS,
    "speculative_model": "head",
    "swap_space": "cache_bytes",
    "tensor_parallel_size": _ONE_PROCESS,
    "tokenizer": _BY_ITSELF,
    "trust_remote_code": "no code of a model is run",
    "verbose": "logging shows the warnings, of the logger 'pymtp'",
}
