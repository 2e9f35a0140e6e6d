// Reads rows of a matrix from the model's file. They cannot always be read from the loaded matrix, because some
// backends store it in a layout of their own.
#pragma once

#include "llama.h"

#include "ggml.h"

#include <memory>
#include <string>

class pymtp_file_rows {
public:
    // Finds the matrix in the file, and keeps the file open. On most systems, the file may be deleted or replaced
    // meanwhile. Throws when no part of the file has a matrix of this name with the type and shape of `matrix`.
    // path: the file of the model or of the head; for a split file, its first part.
    // name: the name of the matrix in the file
    pymtp_file_rows(const std::string & path, const std::string & name, const ggml_tensor & matrix);
    ~pymtp_file_rows();

    // Reads n rows of the matrix, in the order of `rows`, into `to`. Throws when the file cannot be read, or was
    // overwritten since it was opened. May be called from any thread.
    void read(const llama_token * rows, size_t n, void * to) const;

    size_t row_size() const { return row_bytes; }

private:
    class open_file;
    std::unique_ptr<open_file> file;

    size_t offset_in_file; // offset of the matrix in the file
    size_t row_bytes;      // size of one row in bytes
};
