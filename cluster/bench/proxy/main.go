// Command proxy compares our Service proxy with upstream's kube-proxy (nftables mode): the same Services with
// ten endpoints each, every run a process of its own in a network namespace of its own. It takes root and nft.
//
//	proxy                       all sizes, ours and kube-proxy in turn
//	proxy -sizes 100,1000       these
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	sizes := flag.String("sizes", "100,1000,10000", "numbers of Services")
	limit := flag.Duration("limit", 10*time.Minute, "when a run counts as longer than that")
	changes := flag.Int("changes", 20, "how many endpoints are changed, one at a time")
	one := flag.String("run", "", "used by itself: which proxy to run")
	count := flag.Int("services", 0, "used by itself: number of Services")
	flag.Parse()
	if *one != "" {
		if err := run(*one, *count, *changes); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fmt.Println("| Services | proxy | full sync | a change, p50 | p99 | CPU of all | memory |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, size := range strings.Split(*sizes, ",") {
		for _, name := range []string{"coracle", "kube-proxy"} {
			out, err := isolated(*limit, "-run", name, "-services", size, "-changes", strconv.Itoa(*changes))
			if errors.Is(err, context.DeadlineExceeded) {
				out = fmt.Sprintf("> %v | | | |", *limit)
			} else if err != nil {
				fmt.Fprintf(os.Stderr, "%s with %s Services: %v\n", name, size, err)
				os.Exit(1)
			}
			fmt.Printf("| %s | %s | %s |\n", size, name, strings.TrimSpace(out))
		}
	}
}

// isolated runs this program in a network namespace.
func isolated(limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(out), err
}

// look is the pause between two looks at whether the kernel has a change. It is the precision of the figures.
const look = 50 * time.Microsecond

// subject is a proxy. sync returns when all rules are in force, change when that of one Service is handed over.
type subject interface {
	sync(ctx context.Context) error
	change(ctx context.Context, fewer bool) error
}

func run(name string, count, changes int) error {
	ctx := context.Background()
	w := newWorld(count)
	generation, err := newGeneration()
	if err != nil {
		return err
	}
	before := resident()
	var s subject
	switch name {
	case "coracle":
		s, err = newOurs(w)
	case "kube-proxy":
		s, err = newTheirs(ctx, w)
	default:
		err = fmt.Errorf("no proxy %q", name)
	}
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.sync(ctx); err != nil {
		return err
	}
	full := time.Since(began)
	var took []time.Duration
	for i := range changes {
		last, err := generation.now()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := s.change(ctx, i%2 == 0); err != nil {
			return err
		}
		for now := last; now == last; time.Sleep(look) {
			if now, err = generation.now(); err != nil {
				return err
			}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	fmt.Printf("%v | %v | %v | %v | %d MiB\n", full.Round(time.Millisecond), took[len(took)/2].Round(10*time.Microsecond),
		took[len(took)*99/100].Round(10*time.Microsecond), used().Round(10*time.Millisecond), (resident()-before)>>20)
	return nil
}

// used is the processor time of this process and the programs that it ran.
func used() (all time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			all += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return all
}

// resident is this process's memory, after what it does not need is given back.
func resident() int64 {
	runtime.GC()
	debug.FreeOSMemory()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
