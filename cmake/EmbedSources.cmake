# Writes a .cpp file that holds headers with device code as text (kernels/base/compile/sources.h):
#   cmake -D SOURCE=<source tree> -D ROOTS=<header,header..> -D OUTPUT=<file> -D DEPFILE=<file> -P EmbedSources.cmake
# ROOTS are paths below kernels. All that they include as <prologue/...> follows, and so do the other headers that these include, from the
# folder kernels/base/compile/headers. A header that is there under its own path takes the place of the library's. DEPFILE gets what was read.
cmake_minimum_required(VERSION 3.22)
set(_substitutes ${SOURCE}/kernels/base/compile/headers)
string(REPLACE "," ";" _waiting "${ROOTS}")
list(TRANSFORM _waiting PREPEND prologue/kernels/)
set(_seen ${_waiting})
set(_files "")
set(_all "")
set(_entries "")

while(_waiting)
  list(POP_FRONT _waiting _name)
  set(_file ${_substitutes}/${_name})
  if(NOT EXISTS ${_file} AND _name MATCHES "^prologue/(.*)$")
    set(_file ${SOURCE}/${CMAKE_MATCH_1})
  endif()
  if(NOT EXISTS ${_file})
    message(FATAL_ERROR "Device code includes <${_name}>, which NVRTC does not have: put what device code needs of it in "
                        "kernels/base/compile/headers/${_name}, or keep it out of the headers of device code")
  endif()
  file(READ ${_file} _text)
  string(APPEND _all "${_name}\n${_text}")
  # A compiler need not take a string literal of more than 64 KiB.
  string(LENGTH "${_text}" _length)
  if(_length GREATER 65000)
    message(FATAL_ERROR "${_file} has ${_length} bytes: a header with device code has at most 65000")
  endif()
  string(APPEND _entries "    {\"${_name}\", R\"prologue(${_text})prologue\"},\n")
  list(APPEND _files ${_file})
  string(REGEX MATCHALL "#include <[^>\n]+>" _includes "${_text}")
  foreach(_include IN LISTS _includes)
    string(REGEX REPLACE "#include <(.+)>" "\\1" _include "${_include}")
    if(NOT _include IN_LIST _seen)
      list(APPEND _seen ${_include})
      list(APPEND _waiting ${_include})
    endif()
  endforeach()
endwhile()

string(SHA256 _digest "${_all}")
file(WRITE ${OUTPUT} "// Written by cmake/EmbedSources.cmake.
#include <prologue/kernels/base/compile/sources.h>

namespace prologue::cuda {

std::span<const SourceHeader> source_headers() {
  static constexpr SourceHeader headers[] = {
${_entries}  };
  return headers;
}

const char* source_digest() { return \"${_digest}\"; }

}  // namespace prologue::cuda
")
string(REPLACE " " "\\ " _files "${_files}")
list(JOIN _files " \\\n  " _files)
file(WRITE ${DEPFILE} "${OUTPUT}: \\\n  ${_files}\n")
