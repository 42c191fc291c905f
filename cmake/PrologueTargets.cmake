# Helpers that every folder's CMakeLists uses. A library contains all .cpp files of its folder. If CUDA is on it also
# contains all .cu and *_cuda.cpp files, in place of cuda_stubs.cpp.
# Headers are included as <prologue/FOLDER/...> everywhere; in the build tree, symbolic links provide these paths.
foreach(_folder kernels adapters kvcache layers c engine)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include/prologue)
  if(NOT EXISTS ${PROJECT_BINARY_DIR}/include/prologue/${_folder})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${_folder} ${PROJECT_BINARY_DIR}/include/prologue/${_folder} SYMBOLIC)
  endif()
endforeach()
if(NOT EXISTS ${PROJECT_BINARY_DIR}/include/prologue.h)  # C includes <prologue.h>
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/c/prologue.h ${PROJECT_BINARY_DIR}/include/prologue.h SYMBOLIC)
endif()

# Warnings, sanitizers, floating-point rules: the settings of all our targets. With -ffp-contract=off the compiler does not contract
# a*b+c to an FMA: the fused and the unfused prologue must round alike. Code that needs an FMA calls it explicitly.
function(prologue_compile_settings target)
  set(_cxx -Wall -Wextra -Wshadow -Wnon-virtual-dtor -ffp-contract=off)
  if(PROLOGUE_CPU_ARCH)
    list(APPEND _cxx -march=${PROLOGUE_CPU_ARCH})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # compiles in 5 % less time, with 10 to 30 % more memory
    list(APPEND _cxx --param=ggc-min-heapsize=1048576)
  endif()
  if(PROLOGUE_WERROR)
    list(APPEND _cxx -Werror)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${_cxx}>)
  if(PROLOGUE_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>>)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
    if(target MATCHES "^(prologue_(kvcache|layers|c)|examples_common|generate)$")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)  # what computes little: it compiles in half the time
    endif()
  endif()
  if(PROLOGUE_HAS_CUDA)
    target_compile_definitions(${target} PRIVATE PROLOGUE_HAS_CUDA=1)
    # Machine code is kept compressed, at a quarter of its size. The driver unpacks a source's kernels when the first of them is used.
    set(_nvcc -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas --expt-relaxed-constexpr -diag-suppress=177
              -Xfatbin=-compress-all)
    if(NOT PROLOGUE_CUDA_OPTIMISE AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      list(APPEND _nvcc -Ofc=max)
    endif()
    if(PROLOGUE_WERROR)
      list(APPEND _nvcc -Werror=all-warnings)
    endif()
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${_nvcc}> $<$<COMPILE_LANGUAGE:CXX>:-Wno-psabi>)  # as nvcc calls it
  endif()
endfunction()

# Coverage for libFuzzer, whose main() comes with the targets in tests/fuzz: for these and for the libraries that they link. Tests link the
# same libraries, and run in up to 5 % more time. Recording the operands of comparisons takes 11 to 25 %: it is left to the engine, whose fuzz
# targets pass on files and texts. All others make decisions of their bytes, which the library compares with nothing.
function(prologue_cover_for_fuzzing target)
  if(PROLOGUE_FUZZ)
    set(_coverage -fsanitize=fuzzer-no-link)
    if(NOT target STREQUAL "prologue_engine")
      list(APPEND _coverage -fno-sanitize-coverage=trace-cmp)
    endif()
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${_coverage}>)
  endif()
endfunction()

# prologue_library(NAME [STATIC] [C_INTERFACE] [PUBLIC_HEADERS file...] DEPENDS target... PRIVATE_DEPENDS target...)
# makes prologue_NAME, alias prologue::NAME, from all sources below the folder; static or shared as BUILD_SHARED_LIBS says. PUBLIC_HEADERS are
# what an installation holds. They are C++17, the sources C++20; the headers of a library that is not installed may be C++20, too.
# C_INTERFACE: its users may be C, and see nothing of PRIVATE_DEPENDS.
function(prologue_library name)
  cmake_parse_arguments(ARG "STATIC;C_INTERFACE" "" "DEPENDS;PRIVATE_DEPENDS;PUBLIC_HEADERS" ${ARGN})
  file(GLOB_RECURSE _sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(PROLOGUE_HAS_CUDA)
    list(FILTER _sources EXCLUDE REGEX /cuda_stubs\.cpp$)
    file(GLOB_RECURSE _cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
    if(PROLOGUE_CUDA STREQUAL "EMULATED")
      prologue_emulated_sources(_cuda_sources)
    endif()
  else()
    list(FILTER _sources EXCLUDE REGEX _cuda\\.cpp$)
  endif()
  set(_type STATIC)
  if(BUILD_SHARED_LIBS AND NOT ARG_STATIC)
    set(_type SHARED)
  endif()
  add_library(prologue_${name} ${_type} ${_sources} ${_cuda_sources})
  add_library(prologue::${name} ALIAS prologue_${name})
  set_target_properties(prologue_${name} PROPERTIES EXPORT_NAME ${name})
  if(ARG_PUBLIC_HEADERS)
    target_compile_features(prologue_${name} PUBLIC cxx_std_17)
    list(TRANSFORM ARG_PUBLIC_HEADERS PREPEND ${name}/ OUTPUT_VARIABLE _headers)
    set_property(GLOBAL APPEND PROPERTY PROLOGUE_PUBLIC_HEADERS ${_headers})
  elseif(NOT ARG_C_INTERFACE)
    target_compile_features(prologue_${name} PUBLIC cxx_std_20)
  endif()
  target_include_directories(prologue_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(prologue_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
  prologue_compile_settings(prologue_${name})
  prologue_cover_for_fuzzing(prologue_${name})
  if(_cuda_sources AND PROLOGUE_CUDA STREQUAL "EMULATED")
    target_include_directories(prologue_${name} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/emulator/include)
  endif()
  if(_type STREQUAL SHARED)
    set(_exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    target_compile_definitions(prologue_${name} PUBLIC PROLOGUE_SHARED)
    target_link_options(prologue_${name} PRIVATE LINKER:--version-script=${_exports} LINKER:--no-undefined)
    set_target_properties(prologue_${name} PROPERTIES
      LINK_DEPENDS ${_exports} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
      INSTALL_RPATH $ORIGIN)
  endif()
  if(PROLOGUE_INSTALL AND ARG_PUBLIC_HEADERS)
    install(TARGETS prologue_${name} EXPORT prologueTargets)
    foreach(_header ${ARG_PUBLIC_HEADERS})
      get_filename_component(_folder ${name}/${_header} DIRECTORY)
      install(FILES ${_header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/prologue/${_folder})
    endforeach()
  endif()
endfunction()

# prologue_executable(NAME SOURCES file... DEPENDS target...)
function(prologue_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS})
  prologue_compile_settings(${name})
endfunction()

# The sources of each folder are compiled as one, in half of the time, of which most goes into the headers that they share and the templates
# that each would make anew. A Debug build compiles each by itself, and so shows whether it includes what it uses.
function(prologue_compile_by_folder target)
  if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    return()
  endif()
  get_target_property(_sources ${target} SOURCES)
  foreach(_source ${_sources})
    get_filename_component(_folder ${_source} DIRECTORY)
    string(MAKE_C_IDENTIFIER "in_${_folder}" _group)
    set_source_files_properties(${_source} PROPERTIES UNITY_GROUP ${_group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# For code that takes longer to compile than it runs: a release compiles it with -O1.
function(prologue_optimise_lightly target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()
