# SERVE_WEB_PAGE: a source file that holds index.html as a string.
set(SERVE_WEB_PAGE ${CMAKE_CURRENT_BINARY_DIR}/serve_web_page.cpp)
file(READ serve/index.html WEB_PAGE)
configure_file(serve/web_page.cpp.in ${SERVE_WEB_PAGE} @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/serve/index.html)
