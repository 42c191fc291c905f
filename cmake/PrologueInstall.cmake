# find_package(prologue) from an installation: the targets prologue::kernels, ::adapters, ::kvcache, ::layers and ::c. The engine is not installed: it
# is an application of the layers, it needs PCRE2, and its interface is not stable.
include(CMakePackageConfigHelpers)
set(PROLOGUE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/prologue)

# A program that uses the static libraries also links the CUDA runtime (prologueConfig.cmake finds it). Shared libraries contain it.
set(PROLOGUE_LINK_CUDA OFF)
if(NOT BUILD_SHARED_LIBS)
  set(PROLOGUE_LINK_CUDA ${PROLOGUE_HAS_CUDA})
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/prologueConfig.cmake.in ${PROJECT_BINARY_DIR}/prologueConfig.cmake
                              INSTALL_DESTINATION ${PROLOGUE_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/prologueConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/prologueConfig.cmake ${PROJECT_BINARY_DIR}/prologueConfigVersion.cmake
        DESTINATION ${PROLOGUE_PACKAGE_DIR})
install(EXPORT prologueTargets NAMESPACE prologue:: DESTINATION ${PROLOGUE_PACKAGE_DIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/prologue)
