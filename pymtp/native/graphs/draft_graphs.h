// The graphs that only a draft context has.
#pragma once

#include "llama-graph.h"

struct llama_model;

// A graph of a draft context, where llama.cpp's own does not do.
std::unique_ptr<llm_graph_context> pymtp_build_draft_graph(const llama_model & model, const llm_graph_params & params);
