"""Names of sampling parameters in llama-cpp-python, vLLM, transformers and llama.cpp.

The table maps a name to a field of SamplingParams, or a keyword of a chat, or to words on what to do instead. It is for
messages alone: calls of Python take no keyword under two names.
"""

from __future__ import annotations

from collections.abc import Mapping

_NO_MIROSTAT = "there is no mirostat: temperature, min_p and top_n_sigma are there"
_CONTROL_TOKENS = "a text never has control tokens; Model.detokenize shows them"

SAMPLING_NAMES_ELSEWHERE: Mapping[str, str] = {
    "allowed_token_ids": "logit_bias",
    "bad_words": "logit_bias",
    "best_of": "n",
    "do_sample": "a temperature of 0 is greedy, another one samples",
    "dry_range": "dry_penalty_last_n",
    "echo": "create_completion takes it",
    "enable_thinking": "chat_template_kwargs of a chat has it",
    "functions": "tools",
    "function_call": "tool_choice",
    "guided_decoding": "json_schema",
    "guided_json": "json_schema",
    "include_stop_str_in_output": "a text never has its stop string",
    "last_n_tokens_size": "penalty_last_n",
    "length_penalty": "there is no beam search",
    "logits_processors": "logits_processor",
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "ignore_eos",
    "min_tokens": "ignore_eos",
    "mirostat": _NO_MIROSTAT,
    "mirostat_eta": _NO_MIROSTAT,
    "mirostat_mode": _NO_MIROSTAT,
    "mirostat_tau": _NO_MIROSTAT,
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "no_repeat_ngram_size": "dry_multiplier",
    "nsigma": "top_n_sigma",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "repeat_last_n": "penalty_last_n",
    "repeat_penalty": "repetition_penalty",
    "response_format": "json_schema",
    "sampling_params": "give it as params",
    "skip_special_tokens": _CONTROL_TOKENS,
    "spaces_between_special_tokens": _CONTROL_TOKENS,
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "stopping_criteria": "stop",
    "stream": "stream() and stream_chat() yield the pieces of a text",
    "structured_outputs": "json_schema",
    "suffix": "create_completion takes it",
    "temp": "temperature",
    "tfs_z": "top_n_sigma",
    "top_logprobs": "logprobs",
    "typ_p": "typical_p",
    "typical": "typical_p",
    "use_beam_search": "there is no beam search",
}
