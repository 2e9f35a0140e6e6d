// JSON schemas as grammars, by llama.cpp's own converter.
#include "border.h"
#include "pymtp.h"

#include "common.h"
#include "json-schema-to-grammar.h"

// What the converter takes from llama.cpp's common.cpp, which would bring all the rest with it.

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string joined;
    for (size_t i = 0; i < values.size(); ++i) {
        joined += (i ? separator : "") + values[i];
    }
    return joined;
}

std::vector<std::string> string_split(const std::string & text, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t start = 0;
    for (size_t at; (at = text.find(delimiter, start)) != std::string::npos; start = at + delimiter.size()) {
        parts.push_back(text.substr(start, at - start));
    }
    parts.push_back(text.substr(start));
    return parts;
}

std::string string_repeat(const std::string & text, size_t n) {
    std::string repeated;
    while (n-- > 0) {
        repeated += text;
    }
    return repeated;
}

const char * pymtp_schema_to_grammar(const char * schema) {
    static thread_local std::string grammar;
    return pymtp_guarded<const char *>(nullptr, [&] {
        grammar = json_schema_to_grammar(common_json::parse(schema));
        return grammar.c_str();
    });
}
