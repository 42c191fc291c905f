// Loaded with LD_PRELOAD, it makes the first calls of accept() fail with the numbers in the environment's ACCEPT_ERRORS, even if a client
// waits.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

// Returns true if this call fails, with errno set. The server accepts in one thread.
static int fails(void) {
  static const char* rest = NULL;
  if (rest == NULL) {
    rest = getenv("ACCEPT_ERRORS");
    if (rest == NULL) rest = "";
  }
  char* end;
  const long number = strtol(rest, &end, 10);
  if (end == rest) return 0;
  rest = end;
  errno = (int)number;
  return 1;
}

int accept(int socket, struct sockaddr* address, socklen_t* length) {
  if (fails()) return -1;
  int (*real)(int, struct sockaddr*, socklen_t*);
  *(void**)&real = dlsym(RTLD_NEXT, "accept");
  return real(socket, address, length);
}

int accept4(int socket, struct sockaddr* address, socklen_t* length, int flags) {
  if (fails()) return -1;
  int (*real)(int, struct sockaddr*, socklen_t*, int);
  *(void**)&real = dlsym(RTLD_NEXT, "accept4");
  return real(socket, address, length, flags);
}
