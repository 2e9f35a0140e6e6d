// The interface to the host program: errors, logs, and its request to abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// Stores the text for pymtp_last_error(), with the errors that llama.cpp has logged since pymtp_clear_errors(). The
// latter also clears an earlier abort request.
void pymtp_set_error(const std::string & text);
void pymtp_clear_errors();

// Passes a line to the log callback, like llama.cpp's own errors.
void pymtp_log_error(const std::string & text);

// Tells whether this thread's call shall abort. Calls the poll callback at most 20 times a second.
bool pymtp_abort_requested();

// Returns this machine's bytes of memory, or the largest number when they are unknown.
size_t pymtp_system_memory();
