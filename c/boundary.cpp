#include <prologue/c/boundary.h>

#include <exception>
#include <new>
#include <stdexcept>

namespace prologue::c {

namespace {

thread_local Status last_error;

int32_t minor_of(int32_t version) { return version / 100 % 100; }

}  // namespace

prologue_status fail(Status error) {
  last_error = std::move(error);
  return static_cast<prologue_status>(last_error.code());
}

prologue_status fail_with_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  } catch (const std::exception& error) {
    return fail(device_error("an exception of the system: ", error.what()));
  } catch (...) {
    return fail(device_error("an unknown exception"));
  }
  return fail(Status::out_of_memory());
}

prologue_status null_argument(const char* function, const char* argument) {
  return fail(invalid_argument(function, ": ", argument, " is null"));
}

prologue_status used_reserve(const char* function, const char* argument, const MemberPath& words, const char* init) {
  return call([&] {
    return invalid_argument(function, ": ", argument, "->", text_of(words), " must be zeros: initialise the struct with ", init,
                            "(), and use a library that is not older than the header");
  });
}

}  // namespace prologue::c

extern "C" {

int32_t prologue_version(void) { return PROLOGUE_VERSION; }

prologue_status prologue_check_version(int32_t header_version) {
  using namespace prologue::c;
  const int32_t major = header_version / 10000;
  const bool same_major = header_version >= 0 && major == PROLOGUE_VERSION_MAJOR;
  const int32_t minor = minor_of(header_version);
  if (same_major && (major == 0 ? minor == PROLOGUE_VERSION_MINOR : minor <= PROLOGUE_VERSION_MINOR)) return PROLOGUE_STATUS_OK;
  return fail(prologue::unsupported("prologue_check_version: the header is of version ", major, ".", minor,
                                    " and the library of version ", PROLOGUE_VERSION_MAJOR, ".", PROLOGUE_VERSION_MINOR));
}

const char* prologue_last_error_message(void) { return prologue::c::last_error.message().c_str(); }

}  // extern "C"
