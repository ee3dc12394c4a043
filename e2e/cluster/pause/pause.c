/* The process that holds a pod's namespaces: it waits, reaps what is left to it, and ends when asked. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal_number) {
  (void)signal_number;
  _exit(0);
}

static void reap(int signal_number) {
  (void)signal_number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction on_end = {.sa_handler = end};
  struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  if (sigaction(SIGTERM, &on_end, NULL) || sigaction(SIGINT, &on_end, NULL) || sigaction(SIGCHLD, &on_child, NULL)) {
    return 1;
  }
  for (;;) {
    pause();
  }
}
