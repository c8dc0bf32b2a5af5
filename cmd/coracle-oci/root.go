package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/lc"
)

const defaultRoot = "/run/coracle-oci"

// app is one invocation: its global flags and its streams.
type app struct {
	root, logFile, logFormat string
	debug, systemdCgroup     bool
	rootless                 string

	stdin          *os.File
	stdout, stderr io.Writer
	log            *logTarget
}

// exitError carries the exit status of a container's process, or the status that
// an error of this program shall end with.
type exitError struct {
	code int
	err  error // nil: the code says everything
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// run is main with its inputs as arguments; it returns the exit status.
func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	cmd := a.command()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(context.Background())
	defer a.log.close()
	if err == nil {
		return 0
	}
	code := 1
	if exit, ok := errors.AsType[*exitError](err); ok {
		code, err = exit.code, exit.err
	}
	if err != nil {
		a.log.fatal(stderr, err)
	}
	return code
}

func (a *app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "coracle-oci",
		Short: "Make and drive containers from OCI bundles",
		Long: `coracle-oci makes and drives containers from OCI bundles: directories with a
config.json and a root file system. Its commands and flags are those of runc.`,
		Example: `  mkdir -p box/rootfs && cp -a /bin/busybox box/rootfs/    # a bundle
  coracle-oci spec --bundle box                            # its config.json
  coracle-oci run --bundle box mine                        # a container from it

  coracle-oci create --bundle box mine && coracle-oci start mine
  coracle-oci exec mine /busybox ps
  coracle-oci kill mine KILL && coracle-oci delete mine`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			a.log, err = openLog(a.logFile, a.logFormat, a.debug)
			return err
		},
	}
	cmd.SetVersionTemplate("coracle-oci version {{.Version}}\nspec: " + specs.Version + "\n")
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w, see %s --help", err, c.CommandPath())
	})
	f := cmd.PersistentFlags()
	f.StringVar(&a.root, "root", defaultRoot, "directory of the containers' state, best on a tmpfs")
	f.StringVar(&a.logFile, "log", "", "write warnings and errors to this file too (default: standard error only)")
	f.StringVar(&a.logFormat, "log-format", "text", "format of --log: text or json")
	f.BoolVar(&a.debug, "debug", false, "log more")
	f.BoolVar(&a.systemdCgroup, "systemd-cgroup", false, "let systemd make cgroups; linux.cgroupsPath is then slice:prefix:name")
	f.StringVar(&a.rootless, "rootless", "auto", "accepted for runc's callers; always detected")
	_ = f.MarkHidden("rootless")
	cmd.AddCommand(
		a.createCommand(), a.startCommand(), a.runCommand(), a.execCommand(), a.killCommand(), a.deleteCommand(),
		a.pauseCommand(), a.resumeCommand(), a.updateCommand(),
		a.stateCommand(), a.listCommand(), a.psCommand(), a.specCommand(), a.featuresCommand(),
	)
	for _, c := range cmd.Commands() {
		c.Args = showUsage(c.Args)
	}
	return cmd
}

// showUsage answers a wrong number of arguments with the right ones; cobra only counts.
func showUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return fmt.Errorf("wrong number of arguments, the usage is %s", c.UseLine())
		}
		return nil
	}
}

func (a *app) engine() (runtime.Engine, error) {
	root, err := filepath.Abs(a.root)
	if err != nil {
		return nil, err
	}
	return lc.New(lc.Config{StateDir: root, Log: a.log.slog})
}

// load finds a container. "does not exist" is the text that runc's callers look for.
func (a *app) load(ctx context.Context, id string) (runtime.Container, error) {
	e, err := a.engine()
	if err != nil {
		return nil, err
	}
	c, err := e.Load(ctx, id)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil, fmt.Errorf("container does not exist: %w; coracle-oci --root %s list shows what does", err, a.root)
	}
	return c, err
}
