// The interface to the host program: error messages, log lines, and requests to abort a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// pymtp_set_error stores a message for pymtp_last_error(), and appends the errors that llama.cpp has logged since the
// last pymtp_clear_errors(). pymtp_clear_errors also clears an earlier request to abort.
void pymtp_set_error(const std::string & text);
void pymtp_clear_errors();

// Passes a line to the log callback at the level of errors, as if llama.cpp had logged it.
void pymtp_log_error(const std::string & text);

// Returns whether the poll callback has asked to abort this thread's current call. Calls the callback at most 20 times
// a second.
bool pymtp_abort_requested();

// Returns the size of this machine's memory in bytes, or SIZE_MAX if it is unknown.
size_t pymtp_system_memory();
