// Command proxy compares our Service proxy with upstream's kube-proxy (nftables mode): the same
// Services with ten endpoints each, every run a process of its own in a network namespace of its
// own. It takes root and nft.
//
//	proxy                       all sizes, ours and kube-proxy in turn; then connections, and a proxy with nothing to do
//	proxy -sizes 100,1000       these
//	proxy -only sizes           sizes, path (connections), idle
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
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

func main() {
	sizes := flag.String("sizes", "100,1000,10000", "numbers of Services")
	limit := flag.Duration("limit", 10*time.Minute, "when a run counts as longer than that")
	changes := flag.Int("changes", 20, "how many endpoints are changed, one at a time")
	only := flag.String("only", "sizes,path,idle", "what to measure")
	profile := flag.String("cpuprofile", "", "used by itself: where to write a profile of -run")
	one := flag.String("run", "", "used by itself: which proxy to run")
	count := flag.Int("services", 0, "used by itself: number of Services")
	onPath := flag.String("path", "", "used by itself: which proxy to measure connections with")
	atRest := flag.String("idle", "", "used by itself: which proxy to leave alone")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	var err error
	switch {
	case *one != "":
		err = run(*one, *count, *changes, *profile)
	case *onPath != "":
		err = servePath(*onPath)
	case *atRest != "":
		err = idle(*atRest)
	default:
		for _, what := range strings.Split(*only, ",") {
			switch what {
			case "sizes":
				err = allSizes(*sizes, *limit, *changes)
			case "path":
				err = dataPath(*limit)
			case "idle":
				err = allIdle(*limit)
			default:
				err = fmt.Errorf("-only %q is none of sizes, path and idle", what)
			}
			if err != nil {
				break
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// proxies are what is compared.
var proxies = []string{"coracle", "kube-proxy"}

// allSizes prints how long rules take, for each number of Services.
func allSizes(sizes string, limit time.Duration, changes int) error {
	fmt.Println("| Services | proxy | full sync | its CPU | a change, p50 | p99 | CPU of all | memory |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, size := range strings.Split(sizes, ",") {
		for _, name := range proxies {
			out, err := isolated(limit, "-run", name, "-services", size, "-changes", strconv.Itoa(changes))
			if errors.Is(err, context.DeadlineExceeded) {
				out = fmt.Sprintf("> %v | | | | |", limit)
			} else if err != nil {
				return fmt.Errorf("%s with %s Services: %w", name, size, err)
			}
			fmt.Printf("| %s | %s | %s |\n", size, name, strings.TrimSpace(out))
		}
	}
	return nil
}

// rest is how long a proxy is left alone, from ended after its first sync on: only then is all of
// that over.
const rest, ended = 20 * time.Second, time.Second

// allIdle prints what the proxies cost in a cluster that has its own Services only.
func allIdle(limit time.Duration) error {
	fmt.Printf("\nA cluster with %d Services, %v without a change:\n\n| proxy | CPU | memory |\n| --- | --- | --- |\n", defaultServices, rest)
	for _, name := range proxies {
		out, err := isolated(limit, "-idle", name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("| %s | %s |\n", name, strings.TrimSpace(out))
	}
	return nil
}

// defaultServices are those of the API and the DNS.
const defaultServices = 2

func idle(name string) error {
	ctx := context.Background()
	s, err := newSubject(ctx, name, newWorld(defaultServices))
	if err != nil {
		return err
	}
	before := resident()
	if err := s.sync(ctx); err != nil {
		return err
	}
	held := resident() - before
	time.Sleep(ended)
	cpu := used()
	time.Sleep(rest)
	fmt.Printf("%.3f %% | %.1f MiB\n", 100*(used()-cpu).Seconds()/rest.Seconds(), float64(held)/(1<<20))
	return nil
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

// subject is a proxy. sync returns when all rules are in force, change when that of one Service is
// handed over.
type subject interface {
	sync(ctx context.Context) error
	change(ctx context.Context, fewer bool) error
}

func newSubject(ctx context.Context, name string, w *world) (subject, error) {
	switch name {
	case "coracle":
		return newOurs(w)
	case "kube-proxy":
		return newTheirs(ctx, w)
	}
	return nil, fmt.Errorf("no proxy %q", name)
}

func run(name string, count, changes int, profile string) error {
	ctx := context.Background()
	w := newWorld(count)
	s, err := newSubject(ctx, name, w)
	if err != nil {
		return err
	}
	before := resident()
	if profile != "" {
		f, err := os.Create(profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			return err
		}
		defer f.Close()
	}
	began, cpu := time.Now(), used()
	if err := s.sync(ctx); err != nil {
		return err
	}
	full, cpu := time.Since(began), used()-cpu
	pprof.StopCPUProfile()
	var took []time.Duration
	notified, err := watchTransactions() // from now on: the kernel takes time to notify
	if err != nil {
		return err
	}
	for i := range changes {
		last, err := notified.last()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := s.change(ctx, i%2 == 0); err != nil {
			return err
		}
		if err := notified.after(last); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	fmt.Printf("%v | %v | %v | %v | %v | %d MiB\n", full.Round(time.Millisecond), cpu.Round(time.Millisecond),
		took[len(took)/2].Round(10*time.Microsecond),
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
