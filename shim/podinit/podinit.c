// The init of a pod with a shared PID namespace: it reaps what is orphaned there.
// A constructor, like the keeper: when argv[0] is "/coracle-pod-init" the Go runtime
// never starts.
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((constructor)) static void pod_init(int argc, char **argv)
{
	if (argc < 1 || strcmp(argv[0], "/coracle-pod-init") != 0)
		return;
	sigset_t set;
	prctl(PR_SET_NAME, "pod-init");
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_SETMASK, &set, NULL);
	// Orphans that ended before the mask was set have no signal pending: reap first, then wait.
	for (;;) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		int sig = sigwaitinfo(&set, NULL);
		if (sig == SIGTERM || sig == SIGINT)
			_exit(0);
	}
}
