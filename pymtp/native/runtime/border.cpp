#include "border.h"

#include <exception>

void pymtp_keep_error(const char * text) noexcept {
    try {
        pymtp_set_error(text);
    } catch (...) {
    }
}

void pymtp_keep_exception() noexcept {
    try {
        throw;
    } catch (const std::exception & error) {
        pymtp_keep_error(error.what());
    } catch (...) {
        pymtp_keep_error("an exception that says nothing of itself");
    }
}
