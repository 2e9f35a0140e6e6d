#include "file_rows.h"

#include "gguf_file.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>

#ifdef _WIN32
#include "llama-mmap.h"

#include <mutex>
#else
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#ifdef _WIN32
class pymtp_file_rows::open_file {
public:
    explicit open_file(const std::string & path) : file(path.c_str(), "rb") {}

    void check() const {} // does nothing on Windows, see the other implementation below

    void read(size_t offset, char * to, size_t n) {
        const std::lock_guard lock(mutex);
        file.seek(offset, SEEK_SET);
        file.read_raw(to, n);
    }

private:
    llama_file file;
    std::mutex mutex; // held while reading, because all threads share the file position
};
#else
// Reads with pread, which uses no file position: a forked child shares the file position with its parent.
class pymtp_file_rows::open_file {
public:
    explicit open_file(const std::string & path) : file(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (file < 0) {
            throw std::runtime_error(path + ": " + strerror(errno));
        }
        stat_at_open = get_stat();
    }

    ~open_file() { close(file); }

    open_file(const open_file &) = delete;
    open_file & operator=(const open_file &) = delete;

    // Throws when the file was overwritten since it was opened: its rows may then belong to another model.
    void check() const {
        const struct stat now = get_stat();
        if (now.st_size != stat_at_open.st_size || now.st_mtime != stat_at_open.st_mtime) {
            throw std::runtime_error("the model's file was written to");
        }
    }

    void read(size_t offset, char * to, size_t n) const {
        for (size_t done = 0; done < n;) {
            const ssize_t got = pread(file, to + done, n - done, offset + done);
            if (got > 0) {
                done += got;
            } else if (got == 0) {
                throw std::runtime_error("the model's file has become shorter");
            } else if (errno != EINTR) {
                throw std::runtime_error(std::string("the model's file cannot be read: ") + strerror(errno));
            }
        }
    }

private:
    const int   file;
    struct stat stat_at_open = {}; // size and time of modification when the file was opened

    struct stat get_stat() const {
        struct stat found = {};
        if (fstat(file, &found) != 0) {
            found.st_size = -1;
        }
        return found;
    }
};
#endif

static bool is_like(const ggml_tensor & a, const ggml_tensor & b) {
    return a.type == b.type && ggml_are_same_shape(&a, &b);
}

pymtp_file_rows::pymtp_file_rows(const std::string & path, const std::string & name, const ggml_tensor & matrix) :
    row_bytes(ggml_row_size(matrix.type, matrix.ne[0])) {
    for (const pymtp_gguf_file & part : pymtp_open_parts(path)) {
        const ggml_tensor * found = ggml_get_tensor(part.tensors(), name.c_str());
        if (!found || !is_like(*found, matrix)) {
            continue;
        }
        offset_in_file = gguf_get_data_offset(part.gguf()) + gguf_get_tensor_offset(part.gguf(),
                gguf_find_tensor(part.gguf(), name.c_str()));
        file = std::make_unique<open_file>(part.path);
        return;
    }
    throw std::runtime_error("the model's file has no " + name + " as it was loaded");
}

pymtp_file_rows::~pymtp_file_rows() = default;

void pymtp_file_rows::read(const llama_token * rows, size_t n, void * to) const {
    file->check();
    char * next = static_cast<char *>(to);
    for (size_t i = 0; i < n;) {
        size_t run = 1;
        while (i + run < n && rows[i + run] == rows[i] + (llama_token) run) {
            ++run;
        }
        file->read(offset_in_file + rows[i]*row_bytes, next, run*row_bytes);
        next += run*row_bytes;
        i    += run;
    }
}
