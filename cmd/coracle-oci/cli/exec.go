package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/validate"
)

// execFailed is the exit status when exec itself fails, which tells it from the
// statuses that programs end with.
const execFailed = 255

type execFlags struct {
	process, user, cwd, pidFile, consoleSocket string
	pidfdSocket, apparmor, label               string
	env, caps, cgroups                         []string
	gids                                       []uint
	tty, detach, noNewPrivs, ignorePaused      bool
	preserveFDs                                int
}

func (a *app) execCommand() *cobra.Command {
	var x execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] ID [COMMAND [ARG...]]",
		Short: "Run another program in a container",
		Example: `  coracle-oci exec mine ps
  coracle-oci exec --tty --user 1000:1000 --env TERM=$TERM mine sh
  coracle-oci exec --detach --process process.json --pid-file pid mine`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := a.exec(cmd.Context(), cmd, args[0], args[1:], &x)
			if _, ok := errors.AsType[*exitError](err); ok || err == nil {
				return err
			}
			return &exitError{code: execFailed, err: err}
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&x.process, "process", "p", "", "JSON file with the whole process; other flags about it are ignored")
	f.BoolVarP(&x.tty, "tty", "t", false, "give it a terminal")
	f.StringVarP(&x.user, "user", "u", "", "UID or UID:GID (default: the container's)")
	f.UintSliceVarP(&x.gids, "additional-gids", "g", nil, "more group ids")
	f.StringVar(&x.cwd, "cwd", "", "working directory (default: the container's)")
	f.StringArrayVarP(&x.env, "env", "e", nil, "NAME=value, added to the container's environment")
	f.StringArrayVarP(&x.caps, "cap", "c", nil, "capability to add, such as CAP_NET_ADMIN")
	f.BoolVarP(&x.detach, "detach", "d", false, "do not wait for the program")
	f.StringVar(&x.pidFile, "pid-file", "", "write the program's pid to this file")
	f.StringVar(&x.consoleSocket, "console-socket", "", "unix socket that gets the terminal's master side")
	f.BoolVar(&x.noNewPrivs, "no-new-privs", false, "set or, with =false, clear noNewPrivileges (default: the container's)")
	f.StringVar(&x.apparmor, "apparmor", "", "AppArmor profile")
	f.StringVar(&x.label, "process-label", "", "SELinux label")
	f.StringVar(&x.pidfdSocket, "pidfd-socket", "", "unix socket that gets a pidfd of the program")
	f.StringArrayVar(&x.cgroups, "cgroup", nil,
		"existing cgroup below the container's, as PATH or, on cgroup v1, CONTROLLER[,CONTROLLER...]:PATH")
	f.BoolVar(&x.ignorePaused, "ignore-paused", false, "run it also in a paused container; it starts when that is resumed")
	f.IntVar(&x.preserveFDs, "preserve-fds", 0, "pass on this many descriptors after the standard streams")
	return cmd
}

func (a *app) exec(ctx context.Context, cmd *cobra.Command, id string, args []string, x *execFlags) error {
	c, err := a.load(ctx, id)
	if err != nil {
		return err
	}
	p, err := execProcess(ctx, c, cmd, args, x)
	if err != nil {
		return err
	}
	if err := validate.Process(p); err != nil {
		return err
	}
	opts := runtime.ExecOptions{InCreated: true, IgnorePaused: x.ignorePaused}
	if opts.Cgroups, err = parseCgroups(x.cgroups); err != nil {
		return err
	}
	if x.detach {
		stdio, done, err := a.detachedStdio(p, x.consoleSocket, x.preserveFDs)
		if err != nil {
			return err
		}
		defer done()
		opts.Stdio = stdio
		_, err = startExec(ctx, c, p, opts, x)
		return err
	}
	fg, err := a.foreground(p, x.consoleSocket, x.preserveFDs)
	if err != nil {
		return err
	}
	defer fg.close()
	opts.Stdio = fg.stdio
	pid, err := startExec(ctx, c, p, opts, x)
	if err != nil {
		return err
	}
	if err := fg.attach(ctx); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return err
	}
	return fg.wait(pid)
}

func startExec(ctx context.Context, c runtime.Container, p *specs.Process, opts runtime.ExecOptions, x *execFlags) (int, error) {
	pid, err := c.Exec(ctx, p, opts)
	if err != nil {
		return 0, sayExecRefused(ctx, c, err)
	}
	err = sendPidfd(x.pidfdSocket, pidfdOfExec, pid)
	if err == nil {
		err = writePidFile(x.pidFile, pid)
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return 0, err
	}
	return pid, nil
}

// sayExecRefused says in runc's words that the container's status is why.
func sayExecRefused(ctx context.Context, c runtime.Observable, err error) error {
	if !errors.Is(err, runtime.ErrNotRunning) {
		return err
	}
	state, stateErr := c.State(ctx)
	switch {
	case stateErr != nil:
	case state.Status == specs.StateStopped:
		return fmt.Errorf("cannot exec in a stopped container: %w", err)
	case state.Status == runtime.StatusPaused:
		return fmt.Errorf("cannot exec in a paused container (use --ignore-paused to override): %w", err)
	}
	return err
}

// parseCgroups reads --cgroup: either one path for all, or a path per controller.
func parseCgroups(args []string) (map[string]string, error) {
	if len(args) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(args))
	for _, arg := range args {
		controllers, path, split := strings.Cut(arg, ":")
		if !split {
			if len(args) > 1 {
				return nil, fmt.Errorf("--cgroup %q names no controller, with several write CONTROLLER:PATH", arg)
			}
			return map[string]string{"": arg}, nil
		}
		for c := range strings.SplitSeq(controllers, ",") {
			if c == "" {
				return nil, fmt.Errorf("--cgroup %q has an empty controller", arg)
			}
			if _, twice := out[c]; twice {
				return nil, fmt.Errorf("--cgroup: duplicate controller %s", c)
			}
			out[c] = path
		}
	}
	return out, nil
}

// execProcess is the process to run: from a file, or the container's own with
// what the flags change.
func execProcess(ctx context.Context, c runtime.Container, cmd *cobra.Command, args []string, x *execFlags) (*specs.Process, error) {
	if x.process != "" {
		if len(args) > 0 {
			return nil, fmt.Errorf("--process %s and the command %q exclude each other", x.process, args[0])
		}
		p, err := runtime.LoadProcess(x.process)
		if err == nil && x.tty {
			p.Terminal = true
		}
		return p, err
	}
	if len(args) == 0 {
		return nil, errors.New("no command given, use exec ID COMMAND or --process FILE")
	}
	state, err := c.State(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := runtime.LoadSpec(state.Bundle)
	if err != nil {
		return nil, err
	}
	p := spec.Process
	if p == nil {
		p = &specs.Process{Cwd: "/"}
	}
	p.Args, p.Terminal, p.Env = args, x.tty, envOf(p, x.env...)
	if x.cwd != "" {
		p.Cwd = x.cwd
	}
	if x.apparmor != "" {
		p.ApparmorProfile = x.apparmor
	}
	if x.label != "" {
		p.SelinuxLabel = x.label
	}
	if cmd.Flags().Changed("no-new-privs") {
		p.NoNewPrivileges = x.noNewPrivs
	}
	addCaps(p, x.caps)
	return p, setUser(&p.User, x)
}

func addCaps(p *specs.Process, caps []string) {
	if len(caps) == 0 {
		return
	}
	if p.Capabilities == nil {
		p.Capabilities = &specs.LinuxCapabilities{}
	}
	c := p.Capabilities
	c.Bounding = append(c.Bounding, caps...)
	c.Permitted = append(c.Permitted, caps...)
	c.Effective = append(c.Effective, caps...)
	// The kernel wants ambient capabilities to be inheritable as well.
	if len(c.Inheritable) > 0 {
		c.Inheritable = append(c.Inheritable, caps...)
		c.Ambient = append(c.Ambient, caps...)
	}
}

func setUser(u *specs.User, x *execFlags) error {
	for _, g := range x.gids {
		if g >= math.MaxUint32 {
			return fmt.Errorf("--additional-gids: %d is out of range", g)
		}
		u.AdditionalGids = append(u.AdditionalGids, uint32(g))
	}
	if x.user == "" {
		return nil
	}
	uid, gid, both := strings.Cut(x.user, ":")
	n, err := strconv.ParseUint(uid, 10, 32)
	if err != nil {
		return fmt.Errorf("--user %q: the uid must be a number, as in 1000 or 1000:1000", x.user)
	}
	u.UID = uint32(n)
	if both {
		n, err := strconv.ParseUint(gid, 10, 32)
		if err != nil {
			return fmt.Errorf("--user %q: the gid must be a number, as in 1000:1000", x.user)
		}
		u.GID = uint32(n)
	}
	return nil
}
