// Marks functions that are written once and run on the host and on the device.
#pragma once

#if defined(__CUDACC__)
#define PROLOGUE_HOST_DEVICE __host__ __device__
#else
#define PROLOGUE_HOST_DEVICE
#endif
