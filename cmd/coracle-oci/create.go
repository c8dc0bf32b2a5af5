package main

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
)

// makeFlags are the flags that create and run share.
type makeFlags struct {
	bundle, consoleSocket, pidFile string
	noPivot, noNewKeyring          bool
	preserveFDs                    int
}

func (m *makeFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&m.bundle, "bundle", "b", "", "the bundle's directory (default: the working directory)")
	f.StringVar(&m.consoleSocket, "console-socket", "", "unix socket that gets the terminal's master side")
	f.StringVar(&m.pidFile, "pid-file", "", "write the pid of the container's first process to this file")
	f.BoolVar(&m.noPivot, "no-pivot", false, "do not use pivot_root, for a root file system on a ramdisk")
	f.BoolVar(&m.noNewKeyring, "no-new-keyring", false, "keep the session keyring")
	f.IntVar(&m.preserveFDs, "preserve-fds", 0, "pass on this many descriptors after the standard streams")
}

func (a *app) createCommand() *cobra.Command {
	var m makeFlags
	cmd := &cobra.Command{
		Use:   "create [flags] ID",
		Short: "Make a container whose program waits for start",
		Example: `  coracle-oci create --bundle box mine
  coracle-oci start mine`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			spec, bundle, err := m.load()
			if err != nil {
				return err
			}
			stdio, done, err := a.detachedStdio(spec.Process, m.consoleSocket, m.preserveFDs)
			if err != nil {
				return err
			}
			defer done()
			_, err = a.make(ctx, args[0], spec, bundle, &m, stdio)
			return err
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
	return spec, bundle, runtime.ValidateSpec(spec, bundle)
}

// make creates the container and writes the pid file. On error nothing is left.
func (a *app) make(ctx context.Context, id string, spec *specs.Spec, bundle string, m *makeFlags, stdio runtime.Stdio) (runtime.Container, error) {
	e, err := a.engine()
	if err != nil {
		return nil, err
	}
	c, err := e.Create(ctx, id, spec, runtime.CreateOptions{
		Bundle: bundle, Stdio: stdio, SystemdCgroup: a.systemdCgroup,
		NoPivot: m.noPivot, NoNewKeyring: m.noNewKeyring,
	})
	if err != nil {
		return nil, err
	}
	if err := writePidFile(m.pidFile, c.Pid()); err != nil {
		return nil, errors.Join(err, c.Delete(ctx, runtime.DeleteOptions{Force: true}))
	}
	return c, nil
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
	console, err := dialConsole(consoleSocket)
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
