// Builds the graphs that only draft contexts need.
#pragma once

#include "llama-graph.h"

struct llama_model;

// Builds a graph of a draft context, in place of llama.cpp's own graph.
std::unique_ptr<llm_graph_context> pymtp_build_draft_graph(const llama_model & model, const llm_graph_params & params);
