// Command critest runs the Kubernetes CRI validation tests (critest, built by
// hack/tools.sh) against a coracled of its own.
//
//	bin/test/critest
//	bin/test/critest -focus 'port mapping' -v
//	bin/test/critest -md docs/cri-conformance.md
//	bin/test/critest -peer
//
// critest asks for images at registry.k8s.io and gcr.io. In the namespaces that this
// program makes for itself, those names are those of a registry on 127.0.0.1 that
// holds images of the same use (integration/images).
//
// With -systemd it makes no namespaces, since systemd knows processes by the ids that they have
// in its own: that is for a machine made for this, such as that of hack/oci/vm.sh.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/leak"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// hosts are the registries that critest names.
var hosts = []string{"registry.k8s.io", "k8s.gcr.io", "gcr.io"}

type options struct {
	md, from, focus, skip, scope, keep string
	limit                              time.Duration
	systemd, peer, verbose             bool
}

func main() {
	o := parse()
	run := func() int { return run(o) }
	if o.systemd || o.from != "" {
		os.Exit(run())
	}
	os.Exit(testkit.Isolate(run))
}

func parse() (o options) {
	flag.StringVar(&o.md, "md", "", "write the result as this machine's part of this Markdown page; - is standard output")
	flag.StringVar(&o.from, "from", "", "run nothing: the part for -md is in this file, which -md=- wrote elsewhere")
	flag.StringVar(&o.focus, "focus", "", "only tests that match this regular expression")
	flag.StringVar(&o.skip, "skip", "", "no tests that match this regular expression")
	flag.StringVar(&o.scope, "scope", "", "shim.scope: node or pod")
	flag.BoolVar(&o.systemd, "systemd", false, "let systemd make the cgroups; for a machine made for this")
	flag.BoolVar(&o.peer, "peer", false, "validate the containerd of make bench-peers instead, to compare with")
	flag.DurationVar(&o.limit, "limit", 20*time.Minute, "end what takes longer")
	flag.StringVar(&o.keep, "keep", "", "keep logs and reports in this directory")
	flag.BoolVar(&o.verbose, "v", false, "show critest's own output")
	flag.Parse()
	return o
}

func run(o options) int {
	if o.from != "" {
		if err := takePart(o.md, o.from); err != nil {
			fmt.Fprintln(os.Stderr, "critest:", err)
			return 1
		}
		return 0
	}
	failures, err := conformance(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "critest:", err)
		return 1
	}
	for _, f := range failures {
		fmt.Fprintln(os.Stderr, "critest:", f)
	}
	return min(len(failures), 1)
}

// conformance runs everything and returns what is not as it should be.
func conformance(o options) (wrong []string, err error) {
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "critest-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	registry, err := publish(dir)
	if err != nil {
		return nil, err
	}
	defer registry.Close()

	machine, err := describe(o.systemd)
	if err != nil {
		return nil, err
	}
	if o.peer {
		return nil, comparison(o, machine, dir, registry)
	}
	exe, err := testkit.FindBin(testkit.DaemonExe)
	if err != nil {
		return nil, err
	}
	machine.runtime = version(exe, testkit.DaemonExe)
	scope, config := leak.Scope{}, ""
	if o.systemd {
		scope, config = leak.Scope{Cgroups: []string{parentSlice}, Ignore: notOurs}, "[cgroup]\ndriver = \"systemd\"\n"
	}
	before, err := leak.Take(scope)
	if err != nil {
		return nil, err
	}
	d, err := testkit.NewDaemon(testkit.Options{Registries: hosts, Scope: o.scope, Config: config})
	if err != nil {
		return nil, err
	}
	if err := d.Start(); err != nil {
		return nil, err
	}
	begin := time.Now()
	results, runErr := validate(d.Socket, dir, o)
	took := time.Since(begin)
	if o.keep != "" {
		copyLog(d, dir)
	}
	if err := d.Purge(); err != nil {
		return nil, err
	}
	var left leftovers
	before.Check(&left)
	if err := d.RemoveScratch(); err != nil {
		return nil, err
	}
	if runErr != nil {
		return nil, runErr
	}
	left = append(left, failures(results)...)
	if o.focus == "" && o.skip == "" {
		e, err := expected(expectedText, machine)
		if err != nil {
			return nil, err
		}
		left = append(left, e.differences(results)...)
	}
	return left, tell(o, machine, results, took)
}

// tell prints the result, and writes it into the page.
func tell(o options, m machine, results []result, took time.Duration) error {
	sum := summarize(results)
	fmt.Printf("critest: %d passed, %d failed, %d skipped in %v\n", sum.passed, sum.failed, sum.skipped, took.Round(time.Second))
	if o.md == "" {
		return nil
	}
	return writePart(o.md, m, results)
}

// comparison is what critest says of a peer, whose failures are not ours.
func comparison(o options, m machine, dir string, registry *testkit.Registry) (err error) {
	p, err := startPeer(dir, registry.Addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	m.runtime, m.peer = p.name, true
	begin := time.Now()
	results, err := validate(p.socket, dir, o)
	if err != nil {
		return err
	}
	return tell(o, m, results, time.Since(begin))
}

// parentSlice is where critest puts its pods if systemd makes the cgroups. The slice itself
// stays, as a kubelet's would; what is in it does not.
const parentSlice = "/test.slice/"

// notOurs says of a machine without namespaces of our own what comes and goes there by itself:
// processes other than the runtime's. What containers leave would be in parentSlice, too.
func notOurs(line string) bool {
	return strings.HasPrefix(line, "process ") && !strings.Contains(line, "(coracle") && !strings.Contains(line, "(containerd-shim")
}

// leftovers collects what the leak checker says.
type leftovers []string

func (*leftovers) Helper() {}

func (l *leftovers) Errorf(format string, args ...any) { *l = append(*l, fmt.Sprintf(format, args...)) }

// publish starts a registry that answers for hosts and holds the images.
func publish(dir string) (*testkit.Registry, error) {
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, []byte("127.0.0.1 localhost "+strings.Join(hosts, " ")+"\n"), 0o644); err != nil {
		return nil, err
	}
	// In our mount namespace only, if we have one.
	if err := unix.Mount(file, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount on /etc/hosts: %w", err)
	}
	busybox, err := testkit.FindBin("tools", "busybox")
	if err != nil {
		return nil, err
	}
	src, err := images.NewSource(filepath.Dir(filepath.Dir(busybox)))
	if err != nil {
		return nil, err
	}
	src.Busybox = busybox
	list, err := src.Critest()
	if err != nil {
		return nil, err
	}
	registry, err := testkit.NewRegistry(dir, testkit.RegistryOptions{Addr: "127.0.0.1:80"})
	if err != nil {
		return nil, err
	}
	if err := images.Push(context.Background(), registry.Addr, list, ociimage.Registry{PlainHTTP: true}); err != nil {
		return nil, err
	}
	return registry, nil
}

// validate runs critest and reads its report.
func validate(socket, dir string, o options) ([]result, error) {
	exe, err := testkit.FindBin("tools", "critest")
	if err != nil {
		return nil, err
	}
	report := filepath.Join(dir, "junit.xml")
	args := []string{
		"--runtime-endpoint", "unix://" + socket, "--image-endpoint", "unix://" + socket,
		"--ginkgo.junit-report", report, "--ginkgo.no-color",
		"--test.timeout", o.limit.String(), "--ginkgo.timeout", o.limit.String(),
	}
	if o.focus != "" {
		args = append(args, "--ginkgo.focus", o.focus)
	}
	if o.skip != "" {
		args = append(args, "--ginkgo.skip", o.skip)
	}
	log, err := os.Create(filepath.Join(dir, "critest.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	var out io.Writer = log
	if o.verbose {
		out = io.MultiWriter(log, os.Stdout)
	}
	cmd := exec.Command(exe, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = out, out
	runErr := cmd.Run() // fails if a test fails: the report says which
	results, err := readReport(report)
	if err != nil {
		tail, _ := exec.Command("tail", "-n", "30", log.Name()).Output()
		return nil, fmt.Errorf("no report: %w (%w)\n%s", err, runErr, tail)
	}
	return results, ended(runErr, results)
}

// ended is why critest's exit status and its report do not agree: it was interrupted, or died after
// it wrote the report.
func ended(runErr error, results []result) error {
	if anyFailed := summarize(results).failed > 0; anyFailed == (runErr != nil) {
		return nil
	}
	return fmt.Errorf("critest's report has %d failures, its end is: %v", summarize(results).failed, runErr)
}

func copyLog(d *testkit.Daemon, dir string) {
	if raw, err := os.ReadFile(d.LogFile); err == nil {
		_ = os.WriteFile(filepath.Join(dir, "coracled.log"), raw, 0o600)
	}
}
