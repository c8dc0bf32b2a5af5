package testkit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit/leak"
)

// Names of the executables.
const (
	DaemonExe  = "coracled"
	ShimExe    = "containerd-shim-coracle-v1"
	LazyExe    = "coracle-lazy"
	starterExe = "memfd:coracle-zygote" // the shim's starter of containers
)

// Options choose how a daemon runs. The zero value is the default configuration.
type Options struct {
	// Registries are host:port of plain HTTP registries.
	Registries []string
	// Config is more TOML, after what testkit writes.
	Config string
	// Scope is shim.scope, "node" if empty.
	Scope string
	// RootSize makes the root directory a file system of that size, as mount(8) has it: "400m". It
	// is a tmpfs, or ext4 where a tmpfs cannot be id-mapped.
	RootSize string
	// StateSize is the same for the state directory's tmpfs.
	StateSize string
	// CNIConfDir is network.cni_conf_dir; empty: a directory without configuration.
	CNIConfDir string
	// CNIBinDir is searched for plugins before the reference ones.
	CNIBinDir string
	// LogLevel is log.level, "debug" if empty.
	LogLevel string
	// NoSupervise keeps the keeper from starting a dead coracled again.
	NoSupervise bool
	// Faults takes the binaries built with fault points; Env is added to
	// coracled's environment.
	Faults bool
	Env    []string
	// Bin overrides the directory of the binaries.
	Bin string
	// Dir is where the scratch root is made; empty: in the directory for temporary files. Short,
	// for there are sockets below.
	Dir string
}

// patience is when a wait gives up. Nothing is expected to take any part of it: on a machine that
// does other things, too, everything takes as long as it takes.
const patience = 2 * time.Minute

// Daemon is a coracled on a scratch root.
type Daemon struct {
	Root, State string // --root and --state
	Socket      string // path
	LogFile     string // coracled's own log
	Config      string // path
	// Cgroup is a cgroup parent that no one else uses; pods of tests go below it.
	Cgroup string
	// Logs is the parent of pods' log directories.
	Logs string

	dir       string
	bin       string
	env       []string
	stateSize string
	exit      chan struct{} // closed when the process started by Start has ended
}

// NewDaemon makes the scratch root and the configuration, and starts nothing.
// Purge, or the cleanup that StartDaemon registers, removes it again.
func NewDaemon(o Options) (*Daemon, error) {
	bin := o.Bin
	if bin == "" {
		elem := []string{DaemonExe}
		if o.Faults {
			elem = []string{"faults", DaemonExe}
		}
		exe, err := FindBin(elem...)
		if err != nil {
			return nil, err
		}
		bin = filepath.Dir(exe)
	}
	// Not t.TempDir: socket paths have to be short, and a failed purge must not turn
	// into a removal through mounts that are still there.
	dir, err := os.MkdirTemp(o.Dir, "coracle-")
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		dir: dir, bin: bin, env: o.Env, stateSize: o.StateSize,
		Root:    filepath.Join(dir, "root"),
		State:   filepath.Join(dir, "state"),
		Socket:  filepath.Join(dir, "coracle.sock"),
		LogFile: filepath.Join(dir, "coracled.log"),
		Config:  filepath.Join(dir, "coracled.toml"),
		Logs:    filepath.Join(dir, "logs"),
		Cgroup:  "/" + filepath.Base(dir),
	}
	cni := o.CNIConfDir
	if cni == "" {
		cni = filepath.Join(dir, "cni")
	}
	if err := errors.Join(os.MkdirAll(d.Logs, 0o755), os.MkdirAll(cni, 0o755)); err != nil {
		return nil, err
	}
	scope := o.Scope
	if scope == "" {
		scope = "node"
	}
	var c strings.Builder
	level := o.LogLevel
	if level == "" {
		level = "debug"
	}
	fmt.Fprintf(&c, "[log]\nlevel = %q\n\n[shim]\nscope = %q\nsupervise = %v\n\n", level, scope, !o.NoSupervise)
	fmt.Fprintf(&c, "[network]\ncni_conf_dir = %q\n", cni)
	var plugins []string
	if o.CNIBinDir != "" {
		plugins = append(plugins, o.CNIBinDir)
	}
	if reference, err := FindBin("tools", "cni"); err == nil {
		plugins = append(plugins, reference)
	}
	if len(plugins) > 0 {
		fmt.Fprintf(&c, "cni_bin_dirs = [\"%s\"]\n", strings.Join(plugins, `", "`))
	}
	for _, r := range o.Registries {
		fmt.Fprintf(&c, "\n[image.registry.%q]\nplain_http = true\n", r)
	}
	c.WriteString("\n" + o.Config)
	return d, os.WriteFile(d.Config, []byte(c.String()), 0o600)
}

// StartDaemon starts a coracled and waits until it answers. At the test's end it
// is purged, and the test fails if anything is left.
func StartDaemon(t testing.TB, o Options) *Daemon {
	t.Helper()
	d, err := NewDaemon(o)
	if err != nil {
		t.Fatal(err)
	}
	before, err := leak.Take(leak.Scope{Dirs: []string{d.Root, d.State}, Cgroups: []string{d.Cgroup}, Ignore: skeleton(d)})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.MountState(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.mountRoot(o.RootSize), d.resizeState(o.StateSize)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of coracled:\n%s", d.LogTail(80))
			for name, log := range d.shimLogs() {
				t.Logf("%s:\n%s", name, log)
			}
		}
		if err := d.Purge(); err != nil {
			t.Errorf("%v\n%s", err, d.LogTail(20))
		}
		if err := d.UnmountState(); err != nil {
			t.Error(err)
		}
		if o.RootSize != "" {
			if err := unix.Unmount(d.Root, 0); err != nil {
				t.Errorf("unmount %s: %v", d.Root, err)
			}
		}
		before.Check(t)
		if err := d.RemoveScratch(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	return d
}

// MountState makes the state directory what /run is on a node with systemd, until UnmountState.
func (d *Daemon) MountState() error {
	if err := os.Mkdir(d.State, 0o700); err != nil {
		return err
	}
	options := "mode=700"
	if d.stateSize != "" {
		options += ",size=" + d.stateSize
	}
	if err := unix.Mount("tmpfs", d.State, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount %s: %w", d.State, err)
	}
	return nil
}

// UnmountState takes away what MountState mounted, after Purge.
func (d *Daemon) UnmountState() error {
	if err := unix.Unmount(d.State, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", d.State, err)
	}
	return nil
}

// mountRoot makes the root directory as small as a test wants it.
func (d *Daemon) mountRoot(size string) error {
	if size == "" {
		return nil
	}
	if err := os.Mkdir(d.Root, 0o700); err != nil {
		return err
	}
	idMaps, err := tmpfsMapsIDs()
	if err != nil {
		return err
	}
	if !idMaps {
		disk := filepath.Join(d.dir, "root.img")
		for _, command := range [][]string{{"mkfs.ext4", "-q", "-m", "0", disk, size}, {"mount", "-o", "loop,nosuid,nodev", disk, d.Root}} {
			if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
			}
		}
		return os.Chmod(d.Root, 0o700)
	}
	if err := unix.Mount("tmpfs", d.Root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700,size="+size); err != nil {
		return fmt.Errorf("mount %s: %w", d.Root, err)
	}
	return nil
}

// tmpfsMapsIDs reports whether a tmpfs can be id-mapped: since Linux 6.3.
func tmpfsMapsIDs() (bool, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false, fmt.Errorf("uname: %w", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false, fmt.Errorf("kernel release %q: %w", release, err)
	}
	return major > 6 || major == 6 && minor >= 3, nil
}

// resizeState does the same with the state directory, which is already mounted.
func (d *Daemon) resizeState(size string) error {
	if size == "" {
		return nil
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("tmpfs", d.State, "tmpfs", flags, "size="+size); err != nil {
		return fmt.Errorf("remount %s: %w", d.State, err)
	}
	return nil
}

// skeleton ignores what purge may keep: images, and the parent of the pods' cgroups.
func skeleton(d *Daemon) func(string) bool {
	return func(line string) bool {
		return strings.HasPrefix(line, "file "+d.Root) || line == "file "+d.State || d.IsCgroupParent(line)
	}
}

// KeeperPidfds is the leak checker's line about the keeper's pidfds. The keeper has one for each
// program that it has adopted, and none for those that it has started.
const KeeperPidfds = "descriptor of coracle-keeper: anon_inode:[pidfd]"

// ShimCgroupRoot is the leak checker's line about the one descriptor that a shim keeps from the
// first cgroup file on that it opens. A second one is a leak, and has another line.
const ShimCgroupRoot = "descriptor of containerd-shim-coracle-v1: /sys/fs/cgroup"

// IsCgroupParent says whether a line of the leak checker is about Cgroup itself, which
// is the test's as it is the kubelet's elsewhere.
func (d *Daemon) IsCgroupParent(line string) bool {
	return strings.HasPrefix(line, "cgroup ") && strings.HasSuffix(line, d.Cgroup)
}

// Args are coracled's arguments.
func (d *Daemon) Args() []string {
	return []string{"--root", d.Root, "--state", d.State, "--address", "unix://" + d.Socket, "--config", d.Config}
}

// Start starts coracled and waits until it answers.
func (d *Daemon) Start() error { return d.StartWith() }

// StartWith is Start with more environment, for this one process.
func (d *Daemon) StartWith(env ...string) error {
	if err := d.startProcess(env); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return d.WaitReady(ctx)
}

// Exited is closed when the coracled that Start started has ended.
func (d *Daemon) Exited() <-chan struct{} { return d.exit }

// startProcess starts coracled and returns at once.
func (d *Daemon) startProcess(env []string) error {
	log, err := os.OpenFile(d.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(d.bin, DaemonExe), d.Args()...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = slices.Concat([]string{"PATH=" + os.Getenv("PATH")}, d.env, env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	exit := make(chan struct{})
	d.exit = exit
	go func() {
		defer close(exit)
		_ = cmd.Wait()
	}()
	return nil
}

// WaitReady waits until the daemon answers on its socket, or has ended.
func (d *Daemon) WaitReady(ctx context.Context) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	exit := d.exit
	for {
		if c, err := net.Dial("unix", d.Socket); err == nil {
			return c.Close()
		}
		select {
		case <-tick.C:
		case <-exit:
			// The keeper may start another one; without it, that was the end.
			if len(d.Processes()) == 0 {
				return fmt.Errorf("coracled has ended:\n%s", d.LogTail(20))
			}
			exit = nil
		case <-ctx.Done():
			return fmt.Errorf("coracled does not answer: %w\n%s", ctx.Err(), d.LogTail(20))
		}
	}
}

// Purge removes all pods and ends every process of the daemon.
func (d *Daemon) Purge() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(d.bin, DaemonExe), append([]string{"purge"}, d.Args()...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("coracled purge: %w\n%s", err, out)
	}
	return nil
}

// RemoveScratch deletes the scratch directory, which has to be free of mounts.
func (d *Daemon) RemoveScratch() error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(table), " "+d.dir+"/") {
		return fmt.Errorf("%s: something is still mounted in it, not removed", d.dir)
	}
	return errors.Join(RemoveCgroups(d.Cgroup), os.RemoveAll(d.dir))
}

// shimLogs are what shims wrote to their standard error, by file; panics are there.
func (d *Daemon) shimLogs() map[string]string {
	logs := map[string]string{}
	_ = filepath.WalkDir(filepath.Join(d.State, "shim"), func(p string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".log") {
			if raw, err := os.ReadFile(p); err == nil && len(raw) > 0 {
				logs[p] = string(raw)
			}
		}
		return nil
	})
	return logs
}

// LogTail is the end of coracled's log.
func (d *Daemon) LogTail(lines int) string {
	f, err := os.Open(d.LogFile)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var last []string
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20) // a longer line would end the log here
	for s.Scan() {
		last = append(last, s.Text())
		if len(last) > lines {
			last = last[1:]
		}
	}
	return strings.Join(last, "\n")
}
