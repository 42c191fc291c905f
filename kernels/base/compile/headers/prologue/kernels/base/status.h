// For NVRTC, in place of kernels/base/status.h: device code only sees declarations of functions that return these.
#pragma once

#include <prologue/kernels/base/export.h>

namespace prologue {

class Status;
template <class T>
class Result;

}  // namespace prologue
