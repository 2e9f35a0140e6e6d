// The line to the host program: errors, logs, and its wish to stop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// keeps the text for pymtp_last_error(), with what llama.cpp logged as an error since errors_begin(), which also ends an
// earlier wish of the host to stop
void pymtp_set_error(const std::string & text);
void pymtp_errors_begin();

// hands a line to the log callback, as llama.cpp's own errors
void pymtp_log_error(const std::string & text);

// whether this thread's call shall stop: asks the poll callback, at most 20 times a second
bool pymtp_host_wants_stop();

// bytes of memory that this machine has; the largest number where it does not tell
size_t pymtp_host_memory();
