// This is the C side of c_layout_test, compiled as C11.
#include "tests/c/layout.h"

#include <prologue.h>

#if __STDC_VERSION__ != 201112L
#error compiled as another standard than C11
#endif

const struct layout_entry c_layout[] = {
#define PROLOGUE_VALUE(c, cpp) {#c, (int64_t)(c), 0, 0},
#define PROLOGUE_STRUCT(c, cpp) {#c, 0, sizeof(c), _Alignof(c)},
#define PROLOGUE_MEMBER(c, cpp, member) {#c "." #member, offsetof(c, member), sizeof(((c*)0)->member), 0},
#include "c/layout.inc"
    {0, 0, 0, 0},
};
