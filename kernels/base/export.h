// What a shared library of ours exports. Everything else in it is hidden; a static library exports nothing, so that a shared
// library of the user's that it is linked into does not either.
#pragma once

#if defined(PROLOGUE_SHARED)  // a compile definition of the targets, for the library and its users alike
#define PROLOGUE_API [[gnu::visibility("default")]]
#else
#define PROLOGUE_API
#endif
