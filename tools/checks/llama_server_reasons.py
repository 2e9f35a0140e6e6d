"""Why tests of llama.cpp's server are known to fail against pymtp: the first pattern that matches tells the reason.

A test that no pattern matches should pass.
"""

TEXT = "text, tokens or template of the tests' models"
MISSING = "not in pymtp"
OTHERWISE = "as OpenAI, Anthropic or a safe default has it"
DESIGN = "another design: prefix cache, loads, end tokens, versions, kinds of metrics"

REASONS: tuple[tuple[str, str], ...] = (
    # whole features: adapters and slots by request, servers of tools, streams that are taken up again
    (r"test_(lora|mcp_servers|proxy|slot_save|stream|tools_builtin)::", MISSING),
    (r"test_kv_keep_only_active::", MISSING),
    (r"test_router::test_router_(reload|dedup|remote|download|delete)", MISSING),
    (r"test_router::test_router_props", DESIGN),
    # a load that has begun goes on without its clients
    (r"test_router::test_router_queue_client_disconnect", DESIGN),
    (r"test_speculative::test_(synth|with_and_without|with_ctx_shift)", MISSING),
    # texts, numbers of tokens, and llama-server's own templates by name
    (r"test_chat_completion::test_chat_completion(_stream|_with_openai_library|_cached_tokens)?(\[|$)", TEXT),
    (r"test_chat_completion::test_(apply_chat_template|chat_template|return_progress)", TEXT),
    (r"test_completion::test_completion(_stream)?(_with_openai_library)?(\[|$)", TEXT),
    (r"test_completion::test_completion_(response_fields|prompt_cache)", TEXT),
    (r"test_infill::test_infill_with(out)?_input_extra$", TEXT),
    (r"test_tokenize::test_tokenize_with_bos", TEXT),
    (r"test_template::test_date_inside_prompt\[fireworks", TEXT),  # it needs a variable `functions`
    (r"test_rerank::test_rerank(_tei_format|_usage\[.*)?$", TEXT),
    (r"test_embedding::test_embedding_(usage|mixed_input\[-False\]|pooling_none$)", TEXT),
    (r"test_basic::test_load_split_model", TEXT),
    (r"test_ctx_shift::test_ctx_shift_disabled", TEXT),
    (r"test_compat_oai_responses::test_responses_with_openai_library", TEXT),
    (r"test_compat_oai_responses::test_responses_stream_with_llama_telemetry", OTHERWISE),
    (r"test_speculative::test_(slot_ctx|multi)", TEXT),
    # errors, pages of other origins
    (r"test_chat_completion::test_context_size_exceeded", OTHERWISE),
    (r"test_chat_completion::test_invalid_chat_completion_req\[messages7\]", OTHERWISE),
    (r"test_security::test_cors_options\[.*(Allow-Origin|Credentials|Headers)", OTHERWISE),
    (r"test_security::test_(cors_origins_defaults|access_static)", OTHERWISE),
    (r"test_compat_anthropic::test_anthropic_(empty_messages|tool_result_with_image|vision_format)", OTHERWISE),
    (r"test_ignore_eos::test_ignore_eos_populates_logit_bias", DESIGN),
    (r"test_metrics::test_metrics_pro", DESIGN),
    (r"test_sleep::test_server_sleep_(metrics_buckets|read_only)", DESIGN),
    # options and fields
    (r"test_ctx_shift::test_ctx_shift_enabled", MISSING),
    (r"test_basic::test_server_model_aliases_and_tags", MISSING),
    (r"test_security::test_cors_proxy", MISSING),
)
