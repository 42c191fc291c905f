// Marks what a shared build of the library exports; everything else is hidden. A static build exports nothing, so a user's shared
// library that links it does not export our symbols either.
#pragma once

#if defined(PROLOGUE_SHARED)  // a compile definition of the targets, for the library and its users alike
#define PROLOGUE_API [[gnu::visibility("default")]]
#else
#define PROLOGUE_API
#endif
