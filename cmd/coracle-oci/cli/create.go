package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/validate"
)

// makeFlags are the flags that create and run share.
type makeFlags struct {
	bundle, consoleSocket, pidFile, pidfdSocket string
	noPivot, noNewKeyring                       bool
	preserveFDs                                 int
}

func (m *makeFlags) add(cmd *cobra.Command) {
	m.addRestore(cmd)
	f := cmd.Flags()
	f.StringVar(&m.pidfdSocket, "pidfd-socket", "", "unix socket that gets a pidfd of the container's first process")
	f.BoolVar(&m.noNewKeyring, "no-new-keyring", false, "keep the session keyring")
	f.IntVar(&m.preserveFDs, "preserve-fds", 0, "pass on this many descriptors after the standard streams")
}

// addRestore adds those that restore has, too.
func (m *makeFlags) addRestore(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&m.bundle, "bundle", "b", "", "the bundle's directory (default: the working directory)")
	f.StringVar(&m.consoleSocket, "console-socket", "", "unix socket that gets the terminal's master side")
	f.StringVar(&m.pidFile, "pid-file", "", "write the pid of the container's first process to this file")
	f.BoolVar(&m.noPivot, "no-pivot", false, "do not use pivot_root, for a root file system on a ramdisk")
}

func (a *app) createCommand() *cobra.Command {
	var m makeFlags
	cmd := &cobra.Command{
		Use:   "create [flags] ID",
		Short: "Create a container whose program waits for start",
		Example: `  coracle-oci create --bundle box mine
  coracle-oci start mine`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			spec, bundle, err := m.load()
			if err != nil {
				return err
			}
			n, err := a.newNotifier(args[0], spec)
			if err != nil {
				return err
			}
			stdio, done, err := a.detachedStdio(spec.Process, m.consoleSocket, m.preserveFDs)
			if err != nil {
				return errors.Join(err, n.remove())
			}
			defer done()
			if _, err := a.make(ctx, args[0], spec, bundle, &m, stdio); err != nil {
				return errors.Join(err, n.remove())
			}
			return nil
		},
	}
	m.add(cmd)
	return cmd
}

func (m *makeFlags) load() (*specs.Spec, string, error) {
	bundle, err := filepath.Abs(m.bundle)
	if err != nil {
		return nil, "", err
	}
	spec, err := runtime.LoadSpec(bundle)
	if err != nil {
		return nil, "", err
	}
	// Checked here too, because the terminal flags depend on it.
	return spec, bundle, validate.SpecOnHostMounts(spec, bundle)
}

// make creates the container and tells who wants to know. On error nothing is left.
func (a *app) make(ctx context.Context, id string, spec *specs.Spec, bundle string, m *makeFlags,
	stdio runtime.Stdio,
) (runtime.Container, error) {
	e, err := a.engine()
	if err != nil {
		return nil, err
	}
	opts, err := a.createOptions(bundle, m, stdio)
	if err != nil {
		return nil, err
	}
	c, err := e.Create(ctx, id, spec, opts)
	if err != nil {
		return nil, err
	}
	return c, a.tell(ctx, c, m)
}

func (a *app) createOptions(bundle string, m *makeFlags, stdio runtime.Stdio) (runtime.CreateOptions, error) {
	rootless, err := a.rootlessCgroups()
	return runtime.CreateOptions{
		Bundle: bundle, Stdio: stdio, SystemdCgroup: a.systemdCgroup, RootlessCgroups: rootless,
		NoPivot: m.noPivot, NoNewKeyring: m.noNewKeyring,
	}, err
}

// tell sends the pidfd and writes the pid file. If it cannot, the container goes.
func (a *app) tell(ctx context.Context, c runtime.Container, m *makeFlags) error {
	pid := c.Pid()
	err := sendPidfd(m.pidfdSocket, pidfdOfInit, pid)
	if err == nil {
		err = writePidFile(m.pidFile, pid)
	}
	if err != nil {
		return errors.Join(err, c.Delete(ctx, runtime.DeleteOptions{Force: true}))
	}
	return nil
}

// detachedStdio is for processes that outlive this program: they inherit its
// standard streams, or get a terminal whose master goes to a socket.
func (a *app) detachedStdio(p *specs.Process, consoleSocket string, preserve int) (runtime.Stdio, func(), error) {
	if p.Terminal != (consoleSocket != "") {
		if p.Terminal {
			return runtime.Stdio{}, nil, errors.New("process.terminal needs --console-socket when the process is detached")
		}
		return runtime.Stdio{}, nil, errors.New("--console-socket is of no use without process.terminal")
	}
	files, err := inheritedFiles(p, preserve)
	if err != nil {
		return runtime.Stdio{}, nil, err
	}
	if !p.Terminal {
		return runtime.Stdio{Stdin: a.stdin, Stdout: os.Stdout, Stderr: os.Stderr, Files: files}, func() {}, nil
	}
	console, err := a.dialConsole(consoleSocket)
	if err != nil {
		return runtime.Stdio{}, nil, err
	}
	return runtime.Stdio{Console: console, Files: files}, func() { _ = console.Close() }, nil
}

// envOf returns p's environment as a slice that may be appended to.
func envOf(p *specs.Process, more ...string) []string {
	return append(slices.Clip(p.Env), more...)
}

func badDescriptor(n int) error {
	return fmt.Errorf("--preserve-fds: descriptor %d was not passed to coracle-oci", n)
}
