package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/daemon/daemontest"
)

// doubles are what the test binary does under the names of other programs.
var doubles = map[string]func(args []string) int{"coracled": coracledDouble, "coracle-kube": kubeDouble, "coracle-early": earlyDouble}

// With asCoracled in the environment, the double of coracled does what that says: see its values.
const (
	asCoracled = "CORACLE_TEST_CORACLED"
	hung       = "hung"   // it gets the lock, and answers nothing
	late       = "late"   // another one is quicker to get the lock
	second     = "second" // it answers when the cluster process has been started
	early      = "early"  // it is not as far as to take the lock
)

// startedFIFO names a pipe in the environment, which the double of coracle-kube writes to when it
// starts, and a second coracled reads.
const startedFIFO = "CORACLE_TEST_STARTED"

// flagOf is the value of a flag among args.
func flagOf(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// coracledDouble locks the state directory, leaves there what coracled does, and answers Version
// until SIGTERM. A purge removes that and leaves a file that says so.
func coracledDouble(args []string) int {
	p := place{root: flagOf(args, "--root"), state: flagOf(args, "--state")}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	complain := func(err error) int {
		fmt.Fprintln(os.Stderr, "coracled:", err)
		return 1
	}
	switch {
	case len(args) > 0 && args[0] == "config":
		switch filepath.Base(args[2]) {
		case "silent.toml":
			return 3
		case "slow.toml":
			<-ctx.Done()
		}
		return 0
	case len(args) > 0 && args[0] == "purge":
		if err := os.WriteFile(purged(p), nil, 0o600); err != nil {
			return complain(err)
		}
		if pid, err := holder(p.runtime()); err != nil || pid != 0 {
			_ = unix.Kill(pid, unix.SIGTERM)
		}
		_ = os.RemoveAll(filepath.Join(p.state, "shim"))
		return 0
	}
	mode := os.Getenv(asCoracled)
	if mode == early {
		return earlyDouble(args)
	}
	if mode == late {
		quicker := exec.Command(os.Args[0], args...)
		quicker.Env = append(os.Environ(), asCoracled+"=")
		out, err := quicker.StdoutPipe()
		if err != nil || quicker.Start() != nil {
			return complain(fmt.Errorf("start another: %w", err))
		}
		_, _ = out.Read(make([]byte, 1))
	}
	lock, err := hold(p.runtime())
	if err != nil {
		return complain(err)
	}
	defer lock.Close()
	if err := os.MkdirAll(filepath.Join(p.state, "shim"), 0o700); err != nil {
		return complain(err)
	}
	_ = os.Remove(p.Socket())
	l, err := net.Listen("unix", p.Socket())
	if err != nil {
		return complain(err)
	}
	fmt.Println("locked")
	switch mode {
	case hung:
		<-ctx.Done()
		return 0
	case second:
		started, err := os.OpenFile(os.Getenv(startedFIFO), os.O_RDWR, 0)
		if err != nil {
			return complain(err)
		}
		context.AfterFunc(ctx, func() { _ = started.Close() })
		if _, err := started.Read(make([]byte, 1)); err != nil {
			return complain(err)
		}
	}
	s := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(s, daemontest.Runtime{})
	go func() { <-ctx.Done(); s.Stop() }()
	_ = s.Serve(l)
	return 0
}

// earlyDouble is a program that has just been started, and has no lock yet.
func earlyDouble([]string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	fmt.Println("started")
	<-ctx.Done()
	return 0
}

// purged is the file that a purge leaves.
func purged(p place) string { return filepath.Join(p.root, "purged") }

// kubeDouble is a cluster process whose API server never becomes ready.
func kubeDouble(args []string) int {
	if slices.Contains(args, "--check") {
		if flag := flagOf(args, "--eviction-hard"); flag == silent || flag == gateless {
			fmt.Fprintf(os.Stderr, "coracle-kube: --eviction-hard %s is wrong\n", flag)
			return 1
		}
		return 0
	}
	if slices.Contains(args, "controlplane") {
		return askedDouble(args)
	}
	if code := gateDouble(args); code != 0 {
		return code
	}
	if fifo := os.Getenv(startedFIFO); fifo != "" {
		started, err := os.OpenFile(fifo, os.O_RDWR, 0) // kept open: what is written stays until it is read
		if err == nil {
			_, err = started.Write([]byte{0})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "coracle-kube:", err)
			return 1
		}
		defer started.Close()
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	<-ctx.Done()
	return 0
}

// gateDouble waits at the gate of the double of coracle-kube, if it has one. The double's flag
// --eviction-hard says what it does instead.
func gateDouble(args []string) int {
	if os.Getenv(gateVariable) == "" {
		return 0
	}
	file := os.NewFile(3, "gate")
	defer file.Close()
	said := "ok\n"
	switch flag := flagOf(args, "--eviction-hard"); flag {
	case silent:
		return 2
	case gateless:
		if slices.Contains(args, gateFlag) {
			fmt.Fprintln(os.Stderr, "coracle-kube: unknown flag: "+gateFlag)
			return 1
		}
		return 0
	case refuses:
		said = "--eviction-hard " + flag + " is wrong\n"
	}
	if _, err := file.WriteString(said); err != nil || said != "ok\n" {
		return exitRefused
	}
	if n, _ := file.Read(make([]byte, 1)); n == 0 {
		return exitRefused
	}
	return 0
}

// What a double of coracle-kube does at its gate.
const (
	silent   = "silent"   // it ends without a word
	refuses  = "refuses"  // it does not take its flags
	gateless = "gateless" // it is of a release without gates
)

// asked is the file with what the double was asked about control planes.
func asked(p place) string { return filepath.Join(p.kubeRoot(), "asked") }

func askedDouble(args []string) int {
	f, err := os.OpenFile(asked(place{root: filepath.Dir(flagOf(args, "--root"))}), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		defer f.Close()
		_, err = fmt.Fprintln(f, args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coracle-kube:", err)
		return 1
	}
	return 0
}

// withDoubles returns the path of a coracle that has doubles next to it.
func withDoubles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	coracle := filepath.Join(dir, "coracle")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A copy, since the test binary may be on another file system.
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(coracle, program, 0o700); err != nil {
		t.Fatal(err)
	}
	for name := range doubles {
		if err := os.Link(coracle, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return coracle
}

// startCoracled starts a double that up does not know, and returns when it has the lock.
func startCoracled(t *testing.T, coracle string, p place, mode string) (pid int) {
	t.Helper()
	cmd := exec.Command(strings.TrimSuffix(coracle, "coracle")+"coracled", "--root", p.root, "--state", p.state)
	cmd.Env = append(os.Environ(), asCoracled+"="+mode)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("it ended: %v", err)
	}
	return cmd.Process.Pid
}
