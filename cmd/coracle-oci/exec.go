package main

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
)

// execFailed is the exit status when exec itself fails, which tells it from the
// statuses that programs end with.
const execFailed = 255

type execFlags struct {
	process, user, cwd, pidFile, consoleSocket string
	apparmor, label                            string
	env, caps                                  []string
	gids                                       []uint
	tty, detach, noNewPrivs                    bool
	preserveFDs                                int
}

func (a *app) execCommand() *cobra.Command {
	var x execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] ID [COMMAND [ARG...]]",
		Short: "Run another program in a running container",
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
	if err := runtime.ValidateProcess(p); err != nil {
		return err
	}
	if x.detach {
		stdio, done, err := a.detachedStdio(p, x.consoleSocket, x.preserveFDs)
		if err != nil {
			return err
		}
		defer done()
		_, err = startExec(ctx, c, p, stdio, x.pidFile)
		return err
	}
	if x.consoleSocket != "" {
		return errors.New("--console-socket is only for --detach; in the foreground the terminal is this one")
	}
	fg, err := a.foreground(p, x.preserveFDs)
	if err != nil {
		return err
	}
	defer fg.close()
	pid, err := startExec(ctx, c, p, fg.stdio, x.pidFile)
	if err != nil {
		return err
	}
	if err := fg.attach(ctx); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return err
	}
	return fg.wait(pid)
}

func startExec(ctx context.Context, c runtime.Container, p *specs.Process, stdio runtime.Stdio, pidFile string) (int, error) {
	pid, err := c.Exec(ctx, p, runtime.ExecOptions{Stdio: stdio})
	if err != nil {
		return 0, err
	}
	if err := writePidFile(pidFile, pid); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return 0, err
	}
	return pid, nil
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
