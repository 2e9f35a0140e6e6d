// Rows of a matrix as the model's file has them: a backend may hold the matrix in a layout that cannot be read back.
#pragma once

#include "llama.h"

#include "ggml.h"

#include <memory>
#include <string>

class pymtp_file_rows {
public:
    // path: of the model or the head, of a split one its first part. name: of the matrix in the file, where it has the type and
    // shape of matrix. The file stays open: where the system allows it, it may be deleted or replaced meanwhile. Throws where it
    // has no such matrix.
    pymtp_file_rows(const std::string & path, const std::string & name, const ggml_tensor & matrix);
    ~pymtp_file_rows();

    // Rows in the order asked for, one after the other. Throws where the file cannot be read, or was written to since it was
    // opened. For all threads.
    void read(const llama_token * rows, size_t n, void * to) const;

    size_t row_size() const { return size; }

private:
    class opened;
    std::unique_ptr<opened> file;

    size_t start; // of the matrix in the file
    size_t size;  // of a row
};
