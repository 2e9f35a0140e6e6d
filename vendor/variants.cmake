# Builds a module for each of several levels of a processor family, for wheels. PYMTP_VARIANTS names rows of
# pymtp/native/variants.json ("v2,v4"), or is "all" for all rows of the family. Include this file before llama.cpp's
# directory is added, then call pymtp_add_variants. Only ggml-cpu is compiled with the flags of a level, as in a build
# for one processor. So all other code is compiled once, and each module is linked from this code and a ggml-cpu of its
# own.

set(PYMTP_VARIANTS_TABLE ${PROJECT_SOURCE_DIR}/pymtp/native/variants.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PYMTP_VARIANTS_TABLE})

if(MSVC OR APPLE OR GGML_CUDA)
  message(FATAL_ERROR "PYMTP_VARIANTS is for wheels with CPU code for Linux. Leave it unset here: pip install .")
endif()

# ── The rows that PYMTP_VARIANTS asks for ─────────────────────────────────────────────────────────────────────────────

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" family)
file(READ ${PYMTP_VARIANTS_TABLE} table)
string(JSON rows ERROR_VARIABLE missing GET "${table}" ${family})
if(missing)
  message(FATAL_ERROR "pymtp/native/variants.json has no levels of ${CMAKE_SYSTEM_PROCESSOR}. Leave PYMTP_VARIANTS unset.")
endif()
string(JSON last LENGTH "${rows}")
math(EXPR last "${last} - 1")
set(known "")
foreach(i RANGE ${last})
  string(JSON name GET "${rows}" ${i} name)
  list(APPEND known ${name})
  set(flags_of_${name} "")
  string(JSON count LENGTH "${rows}" ${i} flags)
  math(EXPR count "${count} - 1")
  foreach(j RANGE ${count})
    string(JSON flag GET "${rows}" ${i} flags ${j})
    list(APPEND flags_of_${name} ${flag})
  endforeach()
endforeach()

string(REPLACE "," ";" asked "${PYMTP_VARIANTS}")
if(asked STREQUAL "all")
  set(asked ${known})
endif()
foreach(name IN LISTS asked)
  if(NOT name IN_LIST known)
    message(FATAL_ERROR "PYMTP_VARIANTS asks for \"${name}\", which is no level of ${CMAKE_SYSTEM_PROCESSOR}. "
      "Name some of ${known}, with commas between them, or all.")
  endif()
endforeach()

# ── Options: llama.cpp without the instructions of any level, and in sections, to drop unused code ────────────────────

foreach(feature NATIVE SSE42 AVX AVX2 BMI2 FMA F16C AVX_VNNI AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16 AMX_TILE AMX_INT8 AMX_BF16)
  set(GGML_${feature} OFF)
endforeach()
add_compile_options(-ffunction-sections -fdata-sections)
add_link_options(-Wl,--gc-sections)

# ── A ggml-cpu and a module for each level ────────────────────────────────────────────────────────────────────────────

# Adds the library `target`: another ggml-cpu, compiled with the additional compiler options in the other arguments.
function(pymtp_copy_ggml_cpu target)
  get_target_property(directory ggml-cpu SOURCE_DIR)
  get_target_property(sources ggml-cpu SOURCES)
  list(TRANSFORM sources PREPEND "${directory}/" REGEX "^[^/]")
  add_library(${target} STATIC EXCLUDE_FROM_ALL ${sources})
  foreach(property COMPILE_DEFINITIONS COMPILE_FEATURES COMPILE_OPTIONS INCLUDE_DIRECTORIES LINK_LIBRARIES)
    get_target_property(value ggml-cpu ${property})
    if(value)
      set_property(TARGET ${target} PROPERTY ${property} "${value}")
    endif()
  endforeach()
  get_directory_property(definitions DIRECTORY ${directory} COMPILE_DEFINITIONS)
  target_compile_definitions(${target} PRIVATE ${definitions})
  target_compile_options(${target} PRIVATE ${ARGN})
endfunction()

# Adds and installs the modules. The arguments are the sources of each module.
function(pymtp_add_variants)
  foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES) # each module links its own ggml-cpu
    get_target_property(libraries ggml ${property})
    list(REMOVE_ITEM libraries ggml-cpu)
    set_property(TARGET ggml PROPERTY ${property} "${libraries}")
  endforeach()
  set(parts ${ARGN})
  foreach(name IN LISTS asked)
    pymtp_copy_ggml_cpu(ggml-cpu-${name} ${flags_of_${name}})
    pymtp_add_module(_native-${name} ${parts})
    target_link_libraries(_native-${name} PRIVATE ggml-cpu-${name})
    set_target_properties(_native-${name} PROPERTIES
      OUTPUT_NAME _native LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/compiled/${name})
    install(TARGETS _native-${name} LIBRARY DESTINATION pymtp/native/compiled/${name} COMPONENT pymtp)
    if(NOT parts MATCHES "TARGET_OBJECTS")
      set(parts $<TARGET_OBJECTS:_native-${name}>) # the other modules use the same objects
    endif()
  endforeach()
endfunction()
