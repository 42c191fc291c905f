# PROLOGUE_CUDA=EMULATED: the .cu files as C++, with the emulator in place of the toolkit.
add_library(prologue_emulator STATIC ${CMAKE_CURRENT_LIST_DIR}/emulator.cpp ${CMAKE_CURRENT_LIST_DIR}/matrices.cpp
            ${CMAKE_CURRENT_LIST_DIR}/runtime.cpp)
target_compile_features(prologue_emulator PUBLIC cxx_std_20)
target_compile_definitions(prologue_emulator INTERFACE PROLOGUE_CUDA_EMULATED=1 PROLOGUE_FEW_TILES=200)
target_include_directories(prologue_emulator PUBLIC ${CMAKE_CURRENT_LIST_DIR}/include PRIVATE ${PROJECT_BINARY_DIR}/include)
prologue_compile_settings(prologue_emulator)
add_library(CUDA::cudart_static ALIAS prologue_emulator)

# Takes out what needs cuBLASLt, and lets the C++ compiler compile the rest.
set(PROLOGUE_EMULATOR_DIR ${CMAKE_CURRENT_LIST_DIR})
function(prologue_emulated_sources list)
  set(_sources ${${list}})
  list(FILTER _sources EXCLUDE REGEX "/gemm/(cublaslt|gemm)_cuda\\.cu$")
  # -O1: hundreds of instances, and tests that are small. It also keeps GCC 12 from its SLP vectoriser, which makes vfmaddsub
  # of separate products and sums in spite of -ffp-contract=off.
  set_source_files_properties(${_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
    "-xc++;-includecuda_runtime.h;-O1;-fno-strict-aliasing;-Wno-unknown-pragmas;-Wno-shadow;-Wno-maybe-uninitialized;-Wno-switch;-Wno-parentheses")
  if(_sources)
    list(APPEND _sources ${PROLOGUE_EMULATOR_DIR}/gemm.cpp)
  endif()
  set(${list} ${_sources} PARENT_SCOPE)
endfunction()
