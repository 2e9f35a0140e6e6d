# Leaves out of llama.cpp's libraries what pymtp never calls, and compiles what runs seldom with fewer optimizations: a
# fifth of the build's time. Include this file after llama.cpp's directory was added.

get_target_property(llama_directory llama SOURCE_DIR)
get_target_property(sources llama SOURCES)
list(FILTER sources EXCLUDE REGEX "(^|/)(models/[^/]+|llama-quant)\\.cpp$")
foreach(model qwen35 qwen35moe qwen3next delta-net-base)
  list(APPEND sources ${llama_directory}/models/${model}.cpp)
endforeach()
set_target_properties(llama PROPERTIES SOURCES "${sources}")

# llama-model.cpp constructs the class of every architecture. Here all classes but three are names of pymtp_absent_model,
# which pymtp never constructs (pymtp_inspect_model refuses other architectures).
set(absent "#include \"absent_model.h\"\n")
file(STRINGS ${llama_directory}/models/models.h classes REGEX "^struct llama_model_")
foreach(class ${classes})
  string(REGEX MATCH "llama_model_[a-z0-9_]+" class "${class}")
  if(NOT class MATCHES "^llama_model_(qwen35|qwen35moe|qwen3next)$")
    string(APPEND absent "#define ${class} pymtp_absent_model\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/absent_models.h CONTENT "${absent}" @ONLY)
if(MSVC)
  set(force_include "/FI${CMAKE_BINARY_DIR}/generated/absent_models.h")
else()
  set(force_include "-include;${CMAKE_BINARY_DIR}/generated/absent_models.h")
  set(less "-O1") # the last -O counts
endif()

# Seldom: loading, templates, adapters, caches of other models, and the graph of the vision encoder, which is built once
# an image.
set(llama_seldom llama-adapter.cpp llama-chat.cpp llama-grammar.cpp llama-kv-cache-dsa.cpp llama-kv-cache-dsa-iswa.cpp
  llama-kv-cache-dsv4.cpp llama-kv-cache-msa.cpp llama-memory-hybrid-idx.cpp llama-model-loader.cpp llama-model-saver.cpp)
list(TRANSFORM llama_seldom PREPEND ${llama_directory}/)
set_source_files_properties(${llama_seldom} TARGET_DIRECTORY llama PROPERTIES COMPILE_OPTIONS "${less}")
set_source_files_properties(${llama_directory}/llama-model.cpp TARGET_DIRECTORY llama
  PROPERTIES COMPILE_OPTIONS "${force_include};${less}" SKIP_PRECOMPILE_HEADERS ON) # these come before the forced one
get_target_property(ggml_directory ggml-base SOURCE_DIR)
set_source_files_properties(${ggml_directory}/gguf.cpp ${ggml_directory}/ggml-backend-meta.cpp
  TARGET_DIRECTORY ggml-base PROPERTIES COMPILE_OPTIONS "${less}")
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/llama.cpp/tools/mtmd/clip.cpp PROPERTIES COMPILE_OPTIONS "${less}")

# Most files include these headers of C++, which take as long to read as a short file takes to compile.
set(pymtp_precompiled algorithm functional map memory string unordered_map vector)
list(TRANSFORM pymtp_precompiled REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>")
target_precompile_headers(llama PRIVATE ${pymtp_precompiled})
