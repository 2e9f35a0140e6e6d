#include "file_rows.h"

#include "gguf_file.h"

#include "llama-mmap.h"

#include <stdexcept>

static bool is_like(const ggml_tensor & a, const ggml_tensor & b) {
    return a.type == b.type && ggml_are_same_shape(&a, &b);
}

pymtp_file_rows::pymtp_file_rows(const std::string & path, const ggml_tensor & matrix) :
    size(ggml_row_size(matrix.type, matrix.ne[0])) {
    const char * name = ggml_get_name(&matrix);
    for (const pymtp_gguf_file & part : pymtp_parts_of(path)) {
        const ggml_tensor * found = ggml_get_tensor(part.tensors(), name);
        if (!found || !is_like(*found, matrix)) {
            continue;
        }
        start = gguf_get_data_offset(part.gguf()) + gguf_get_tensor_offset(part.gguf(), gguf_find_tensor(part.gguf(), name));
        file  = std::make_unique<llama_file>(part.path.c_str(), "rb");
        return;
    }
    throw std::runtime_error(std::string("the model's file has no ") + name + " as it was loaded");
}

pymtp_file_rows::~pymtp_file_rows() = default;

void pymtp_file_rows::read(const llama_token * rows, size_t n, void * to) const {
    const std::lock_guard lock(reading);
    char * next = static_cast<char *>(to);
    for (size_t i = 0; i < n;) {
        size_t run = 1;
        while (i + run < n && rows[i + run] == rows[i] + (llama_token) run) {
            ++run;
        }
        file->seek(start + rows[i]*size, SEEK_SET);
        file->read_raw(next, run*size);
        next += run*size;
        i    += run;
    }
}
