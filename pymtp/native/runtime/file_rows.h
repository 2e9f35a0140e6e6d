// Reads rows of a matrix from the model's file, because a backend may hold the matrix in a layout that cannot be read
// back.
#pragma once

#include "llama.h"

#include "ggml.h"

#include <memory>
#include <string>

class pymtp_file_rows {
public:
    // path: the model's or the head's file; the first part of a split one. name: the matrix in the file, which must
    // have the type and shape of `matrix`. The file stays open; where the system allows it, it may be deleted or
    // replaced meanwhile. Throws when it has no such matrix.
    pymtp_file_rows(const std::string & path, const std::string & name, const ggml_tensor & matrix);
    ~pymtp_file_rows();

    // Reads rows in the given order. Throws when the file cannot be read, or was written to since it was opened. May
    // be called from any thread.
    void read(const llama_token * rows, size_t n, void * to) const;

    size_t row_size() const { return row_bytes; }

private:
    class open_file;
    std::unique_ptr<open_file> file;

    size_t offset_in_file; // offset of the matrix in the file
    size_t row_bytes;      // bytes of a row
};
