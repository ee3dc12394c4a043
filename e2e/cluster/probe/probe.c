/* What the cluster's test runs inside pods:
   probe listen        accepts connections on port 8080 for ever
   probe reach ADDRESS connects to port 8080 there: exits with 0 when it is answered within two seconds
   probe write FILE    makes a file, then waits for ever */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 8080, TIMEOUT_MS = 2000 };

static int listen_for_ever(void) {
  struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  int yes = 1;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 16)) {
    perror("listen");
    return 1;
  }
  for (;;) {
    int connection = accept(listener, NULL, NULL);
    if (connection >= 0) {
      close(connection);
    }
  }
}

static int reach(const char *address) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  int error = 0;
  socklen_t size = sizeof error;
  struct pollfd ready = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), .events = POLLOUT};
  if (inet_pton(AF_INET, address, &to.sin_addr) != 1) {
    return 2;
  }
  connect(ready.fd, (struct sockaddr *)&to, sizeof to);
  if (poll(&ready, 1, TIMEOUT_MS) != 1 || getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &size)) {
    return 1;
  }
  return error != 0;
}

static int write_file(const char *path) {
  int file = open(path, O_CREAT | O_WRONLY, 0644);
  if (file < 0) {
    perror(path);
    return 1;
  }
  close(file);
  for (;;) {
    pause();
  }
}

int main(int count, char **arguments) {
  if (count == 2 && !strcmp(arguments[1], "listen")) {
    return listen_for_ever();
  }
  if (count == 3 && !strcmp(arguments[1], "reach")) {
    return reach(arguments[2]);
  }
  if (count == 3 && !strcmp(arguments[1], "write")) {
    return write_file(arguments[2]);
  }
  return 2;
}
