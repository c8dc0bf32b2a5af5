// What no runtime can do without, on cgroups of version 1 and 2: it makes a cgroup in every
// hierarchy, clones a process into new namespaces, which joins the cgroups, changes its root
// and executes the program; waits for it and removes the cgroups.
// Usage: floor ROOTFS CGROUP PROGRAM
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64][512];
static int n;

static int child(char **argv)
{
	for (int i = 0; i < n; i++) {
		char file[600];
		snprintf(file, sizeof file, "%s/%s", path[i], access("/sys/fs/cgroup/cgroup.procs", F_OK) ? "tasks" : "cgroup.procs");
		int fd = open(file, O_WRONLY);
		if (fd < 0 || write(fd, "0", 1) != 1)
			return 2;
		close(fd);
	}
	if (mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) || mount(argv[1], argv[1], 0, MS_BIND | MS_REC, 0) || chdir(argv[1]) ||
	    mount("proc", "proc", "proc", 0, 0) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH))
		return 3;
	execl(argv[3], argv[3], (char *)0);
	return 4;
}

int main(int argc, char **argv)
{
	glob_t g;
	if (argc != 4)
		return 1;
	if (access("/sys/fs/cgroup/cgroup.procs", F_OK) == 0) {
		snprintf(path[n++], 512, "/sys/fs/cgroup%s", argv[2]);
	} else {
		if (glob("/sys/fs/cgroup/*/tasks", 0, 0, &g))
			return 1;
		for (size_t i = 0; i < g.gl_pathc && n < 64; i++) {
			char *file = g.gl_pathv[i];
			file[strlen(file) - strlen("/tasks")] = 0;
			struct stat st;
			if (lstat(file, &st) == 0 && S_ISDIR(st.st_mode) && !strstr(file, "cpuset"))
				snprintf(path[n++], 512, "%s%s", file, argv[2]);
		}
	}
	for (int i = 0; i < n; i++)
		mkdir(path[i], 0755);
	static char stack[65536];
	int status, pid = clone(child, stack + sizeof stack, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_VFORK | SIGCHLD, argv);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 1;
	for (int i = 0; i < n; i++)
		rmdir(path[i]);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
