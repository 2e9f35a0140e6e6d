#pragma once

#include "models/models.h"

// Stands in for the models of other architectures (vendor/lean.cmake): llama-model.cpp names the class of each, and
// would need their sources. pymtp_inspect_model refuses files of other architectures before they are loaded.
struct pymtp_absent_model : llama_model_base {
    using llama_model_base::llama_model_base;

    void load_arch_hparams(llama_model_loader & /*ml*/) override { refuse(); }

    void load_arch_tensors(llama_model_loader & /*ml*/) override { refuse(); }

    std::unique_ptr<llm_graph_context> build_arch_graph(const llm_graph_params & /*params*/) const override {
        refuse();
    }

private:
    [[noreturn]] static void refuse() {
        throw std::runtime_error("this build has no models of this architecture");
    }
};
