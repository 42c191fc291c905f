# The library's project includes this where install_test.cmake builds it as shared libraries: headers of the standard library, most of the
# time of a file at -O0, are compiled once for the kernels and once for the layers.
set(_precompiled <algorithm> <array> <atomic> <cmath> <cstdint> <cstring> <functional> <limits> <memory> <mutex> <optional> <span> <sstream>
                 <string> <string_view> <tuple> <unordered_map> <utility> <vector>)
cmake_language(DEFER CALL target_precompile_headers prologue_kernels PRIVATE ${_precompiled})
cmake_language(DEFER CALL target_precompile_headers prologue_layers PRIVATE ${_precompiled})
