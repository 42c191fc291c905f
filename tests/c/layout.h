// What C sees of prologue.h: each enumerator, struct and member of c/layout.inc, in its order.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct layout_entry {
  const char* name;
  int64_t value;  // of an enumerator; the offset of a member
  size_t size;
  size_t alignment;
};

#ifdef __cplusplus
extern "C"
#else
extern
#endif
    const struct layout_entry c_layout[];  // a null name ends it
