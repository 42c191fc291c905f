# The tests of docs/coming-from.md: tests/adapters/NAME_test.cpp includes NAME.inc, the page's C++ blocks of that name.
set(_page ${PROJECT_SOURCE_DIR}/docs/coming-from.md)
set(_snippets ${CMAKE_CURRENT_BINARY_DIR}/adapters)
file(GLOB _tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/adapters/*_test.cpp)
set(_names ${_tests})
list(TRANSFORM _names REPLACE ".+/(.+)_test.cpp" "\\1")
set(_extracted ${_names})
list(TRANSFORM _extracted REPLACE "(.+)" "${_snippets}/\\1.inc")
list(JOIN _names "," _names)
add_custom_command(
  OUTPUT ${_extracted}
  COMMAND ${CMAKE_COMMAND} -DPAGE=${_page} -DTO=${_snippets} -DNAMES=${_names} -P ${PROJECT_SOURCE_DIR}/cmake/ExtractSnippets.cmake
  DEPENDS ${_page} ${PROJECT_SOURCE_DIR}/cmake/ExtractSnippets.cmake VERBATIM)
prologue_executable(adapters_test SOURCES adapters/page.cpp ${_tests} ${_extracted} DEPENDS prologue_test_support prologue::adapters
                                                                             GTest::gtest_main)
target_include_directories(adapters_test PRIVATE ${_snippets})
prologue_compile_quickly(adapters_test)
gtest_discover_tests(adapters_test DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
