package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/zygote/program"
)

// app is one invocation: its global flags and its streams.
type app struct {
	extra                    *Companion // nil: the companion has it
	early                    *program.Starting
	args                     []string
	console                  int            // the console socket, connected; -1: none
	opened                   *engine.Engine // nil until someone needs it
	traceSteps               bool
	watch                    stopwatch
	engineName               string
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

// Main is the main function of a program; it ends the process. extra is nil in a program that
// has a companion. early is the starter of the first container, nil without one.
func Main(extra *Companion, early *program.Starting) {
	a := &app{
		extra: extra, early: early, args: os.Args[1:], console: inheritedConsole(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
	}
	os.Exit(a.run())
}

// Run is Main with its inputs as arguments; it returns the exit status.
func Run(extra *Companion, args []string, stdin *os.File, stdout, stderr io.Writer) int {
	a := &app{extra: extra, args: args, console: inheritedConsole(), stdin: stdin, stdout: stdout, stderr: stderr}
	return a.run()
}

func (a *app) run() int {
	a.watch.begin()
	cmd := a.command()
	cmd.SetArgs(a.args)
	cmd.SetOut(a.stdout)
	cmd.SetErr(a.stderr)
	err := cmd.ExecuteContext(context.Background())
	defer a.log.close()
	a.endStarter()
	a.printSteps()
	if errors.Is(err, errCompanion) || errors.Is(err, engine.ErrLibcontainer) {
		err = a.becomeCompanion()
	}
	if err == nil {
		return 0
	}
	code := 1
	if exit, ok := errors.AsType[*exitError](err); ok {
		code, err = exit.code, exit.err
	}
	if err != nil {
		a.log.fatal(a.stderr, err)
	}
	return code
}

func (a *app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "coracle-oci",
		Short: "Create and manage containers from OCI bundles",
		Long: `coracle-oci creates and manages containers from OCI bundles: directories with a
config.json and a root file system. Its commands and flags are those of runc.`,
		Example: `  mkdir -p box/rootfs && cp -a /bin/busybox box/rootfs/    # a bundle
  coracle-oci spec --bundle box                            # its config.json
  coracle-oci run --bundle box mine                        # a container from it

  coracle-oci create --bundle box mine && coracle-oci start mine
  coracle-oci exec mine /busybox ps
  coracle-oci kill mine KILL && coracle-oci delete mine`,
		Version:       a.versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if err := a.globals(); err != nil {
				return err
			}
			return checkIDs(cmd, args)
		},
	}
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w, see %s --help", err, c.CommandPath())
	})
	f := cmd.PersistentFlags()
	f.StringVar(&a.root, "root", defaultRoot(), "directory of the containers' state, best on a tmpfs")
	f.StringVar(&a.logFile, "log", "", "write warnings and errors to this file too (default: standard error only)")
	f.StringVar(&a.logFormat, "log-format", "text", "format of --log: text or json")
	f.BoolVar(&a.debug, "debug", false, "log more")
	f.StringVar(&a.engineName, "engine", engine.Name, "what makes containers: coracle, or libcontainer to compare with")
	f.BoolVar(&a.traceSteps, "trace-steps", false, "print on standard error how long each step of creating a container or process takes")
	f.BoolVar(&a.systemdCgroup, "systemd-cgroup", false, "let systemd create cgroups; linux.cgroupsPath is then slice:prefix:name")
	f.StringVar(&a.rootless, "rootless", "auto", "continue if cgroups cannot be written: true, false or auto")
	a.addCommands(cmd)
	for _, c := range cmd.Commands() {
		c.Args = showUsage(c.Args)
		if takesID(c) {
			c.ValidArgsFunction = a.completeIDs
		}
	}
	return cmd
}

// addCommands adds the command that the arguments name, if they surely do, else all of them: that
// takes longer than some commands take themselves.
func (a *app) addCommands(cmd *cobra.Command) {
	if one := a.frequent(named(cmd.PersistentFlags(), a.args)); one != nil {
		cmd.CompletionOptions.DisableDefaultCmd = true
		cmd.AddCommand(one)
		return
	}
	cmd.AddCommand(
		a.createCommand(), a.startCommand(), a.runCommand(), a.execCommand(), a.killCommand(), a.deleteCommand(),
		a.pauseCommand(), a.resumeCommand(), a.updateCommand(), a.checkpointCommand(), a.restoreCommand(),
		a.stateCommand(), a.listCommand(), a.psCommand(), a.eventsCommand(), a.specCommand(), a.featuresCommand(),
		a.explainCommand(), a.manCommand(),
	)
}

// frequent is one of the commands that containers are made and driven with, nil for others.
func (a *app) frequent(name string) *cobra.Command {
	switch name {
	case "create":
		return a.createCommand()
	case "start":
		return a.startCommand()
	case "run":
		return a.runCommand()
	case "exec":
		return a.execCommand()
	case "kill":
		return a.killCommand()
	case "delete":
		return a.deleteCommand()
	case "state":
		return a.stateCommand()
	}
	return nil
}

// named is the command that the arguments name: the first that is no flag and no flag's
// value. It is "" where there is anything but the long flags that are known.
func named(global *pflag.FlagSet, args []string) string {
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "--")
		if !isFlag {
			if strings.HasPrefix(args[i], "-") {
				return ""
			}
			return args[i]
		}
		name, _, hasValue := strings.Cut(name, "=")
		f := global.Lookup(name)
		if f == nil {
			return ""
		}
		if !hasValue && f.NoOptDefVal == "" {
			i++
		}
	}
	return ""
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

func takesID(c *cobra.Command) bool { return strings.Contains(c.Use, " ID") }

// checkIDs refuses bad container ids before the command does anything: ids become parts of paths,
// also outside of the engine, which checks them itself.
func checkIDs(c *cobra.Command, args []string) error {
	if !takesID(c) {
		return nil
	}
	if !strings.HasSuffix(c.Use, " ID...") {
		args = args[:1]
	}
	for _, id := range args {
		if err := runtime.ValidateID(id); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) engine() (runtime.Engine, error) {
	if a.opened == nil {
		if err := a.makeStateRoot(); err != nil {
			return nil, err
		}
		cfg := engine.Config{StateDir: a.root, Log: a.log.slog, Trace: a.trace(), Alone: true, Early: a.early}
		if a.extra != nil {
			var err error
			if cfg.Fallback, err = a.extra.Engine(a.root, a.log.slog); err != nil {
				return nil, err
			}
		}
		e, err := engine.Open(a.engineName, cfg)
		if err != nil {
			return nil, err
		}
		a.opened = e
	}
	return a.opened, nil
}

// dismissStarter has the starter end while there is something else to wait for.
func (a *app) dismissStarter() {
	if a.opened != nil {
		a.opened.Dismiss()
	}
}

// endStarter ends the process that starts containers, and reaps it, so that no reaper of orphans
// sees it.
func (a *app) endStarter() {
	if a.opened != nil {
		_ = a.opened.Close() // which cannot fail in a way that matters to what is done already
	}
	a.early.Discard()
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
