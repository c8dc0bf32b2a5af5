package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/logfile"
	"github.com/coracle-project/coracle/internal/manpage"
	"github.com/coracle-project/coracle/internal/version"
)

const defaultConfigFile = "/etc/coracle/config.toml"

// flags are the settings of the command line; those given win over the file's.
type flags struct {
	root, state, address, config, logLevel, logFile, shortNames string
	onlyListed                                                  bool
}

func command() *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:   "coracled",
		Short: "run containers for Kubernetes",
		Long: `coracled serves the Kubernetes Container Runtime Interface (CRI v1) on a unix
socket. Containers go on when it ends, however it ends; started again with the same
--root and --state, it finds them all.`,
		Example: `  coracled
  coracled --root /srv/coracle --log-level debug
  coracled config default > /etc/coracle/config.toml
  crictl --runtime-endpoint unix:///run/coracle/coracle.sock pods`,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.load(cmd)
			if err != nil {
				return err
			}
			out := io.Writer(os.Stderr)
			if f.logFile != "" {
				file, err := logfile.Open(f.logFile)
				if err != nil {
					return err
				}
				defer file.Close()
				out = file
			}
			level := new(slog.LevelVar)
			level.Set(c.Log.SlogLevel())
			s := source{load: func() (config.Config, error) { return f.load(cmd) }, level: level}
			return runDaemon(cmd.Context(), c, s, f.again(cmd, c), newLog(c.Log, level, out))
		},
	}
	f.define(root)
	root.AddCommand(configCommand(), purgeCommand(&f), manpage.Command(manpage.Page{
		Files: `/etc/coracle/config.toml: settings; coracled config default prints all with explanations. SIGHUP has it read again.
/etc/coracle/certs.d: how registries are reached, as containerd has it.
/run/coracle/coracle.sock: CRI, for the kubelet, crictl and coracle.`,
		ExitStatus: "0 after SIGTERM or SIGINT, 1 on an error, 78 if the state directory has records of a newer coracled.",
		SeeAlso:    "coracle(8), coracle-oci(8)",
	}))
	return root
}

// onlyListed is a flag that coracle up gives.
const onlyListed = "only-listed-loopback"

// define makes the flags of a command and of those below it.
func (f *flags) define(cmd *cobra.Command) {
	d := config.Default()
	p := cmd.PersistentFlags()
	p.StringVar(&f.root, "root", d.Root, "directory for what outlives a reboot")
	p.StringVar(&f.state, "state", d.State, "directory for what a reboot may lose")
	p.StringVar(&f.address, "address", "unix://"+d.Socket(), "socket to serve on; follows --state unless given")
	p.StringVar(&f.config, "config", defaultConfigFile, "TOML file; only the default may be absent")
	p.StringVar(&f.logLevel, "log-level", d.Log.Level, "debug, info, warn or error")
	cmd.Flags().StringVar(&f.shortNames, "short-name-registry", "",
		"registry of images whose names have none, unless the configuration file names one (default: such names are refused)")
	cmd.Flags().BoolVar(&f.onlyListed, onlyListed, false, "set image.only_listed_loopback, whatever the file says")
	cmd.Flags().StringVar(&f.logFile, "log-file", "",
		"file to log to instead of standard error; from 10 MiB on it is set aside as FILE.1 to FILE.3")
}

// load reads the file and puts the flags that were given over it.
func (f *flags) load(cmd *cobra.Command) (config.Config, error) {
	given := cmd.Flags().Changed
	c, err := config.Load(f.config)
	if errors.Is(err, fs.ErrNotExist) && !given("config") {
		c, err = config.Default(), nil
	}
	if err != nil {
		return c, err
	}
	for name, place := range map[string]struct{ value, into *string }{
		"root":      {&f.root, &c.Root},
		"state":     {&f.state, &c.State},
		"address":   {&f.address, &c.GRPC.Address},
		"log-level": {&f.logLevel, &c.Log.Level},
	} {
		if given(name) {
			*place.into = *place.value
		}
	}
	if c.Image.ShortNameRegistry == "" {
		c.Image.ShortNameRegistry = f.shortNames
	}
	c.Image.OnlyListedLoopback = c.Image.OnlyListedLoopback || f.onlyListed
	for _, dir := range []*string{&c.Root, &c.State} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return c, err
		}
	}
	return c, c.Check()
}

// again is the arguments that start this daemon once more: those given, with paths
// that do not depend on the working directory. It is never nil.
func (f *flags) again(cmd *cobra.Command, c config.Config) []string {
	args := []string{}
	for _, flag := range []struct{ name, value string }{
		{"root", c.Root},
		{"state", c.State},
		{"address", c.GRPC.Address},
		{"config", absolute(f.config)},
		{"log-level", c.Log.Level},
		{"log-file", absolute(f.logFile)},
		{"short-name-registry", f.shortNames},
	} {
		if cmd.Flags().Changed(flag.name) {
			args = append(args, "--"+flag.name, flag.value)
		}
	}
	if f.onlyListed {
		args = append(args, "--"+onlyListed)
	}
	return args
}

// absolute leaves a path as it is if the working directory is gone.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func configCommand() *cobra.Command {
	group := &cobra.Command{Use: "config", Short: "print or check the configuration"}
	group.AddCommand(&cobra.Command{
		Use:     "default",
		Short:   "print the default configuration with explanations",
		Example: "  coracled config default > /etc/coracle/config.toml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return config.Write(cmd.OutOrStdout(), config.Default())
		},
	}, &cobra.Command{
		Use:     "check FILE",
		Short:   "say what is wrong in a configuration file",
		Example: "  coracled config check /etc/coracle/config.toml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("config check: give one FILE, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := config.Load(args[0])
			if err != nil {
				return err
			}
			_, unreachable := registry.NewClient(registries(c.Image)) // reads the files that it names
			if err := errors.Join(append(checkHandlers(c.Runtime), unreachable)...); err != nil {
				return fmt.Errorf("config %s: %w", args[0], err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", args[0])
			return err
		},
	})
	return group
}

func newLog(c config.Log, level slog.Leveler, out io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(out, o))
	}
	return slog.New(slog.NewTextHandler(out, o))
}
