// The smallest container: does nothing, ends on SIGTERM or SIGINT, reaps children.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig)
{
	(void)sig;
	_exit(0);
}

static void reap(int sig)
{
	(void)sig;
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

int main(void)
{
	struct sigaction term = {.sa_handler = end};
	struct sigaction child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};

	if (sigaction(SIGTERM, &term, 0) || sigaction(SIGINT, &term, 0) ||
	    sigaction(SIGCHLD, &child, 0))
		return 1;
	for (;;)
		pause();
}
