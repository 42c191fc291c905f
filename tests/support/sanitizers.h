// Says which sanitizers the compiler adds. GCC has macros for them, Clang a feature test.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define PROLOGUE_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PROLOGUE_ADDRESS_SANITIZER 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define PROLOGUE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PROLOGUE_THREAD_SANITIZER 1
#endif
#endif
