package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/buildkit/util/progress/progressui"
	"github.com/spf13/cobra"
)

// settings are what the command line says.
type settings struct {
	root, state, address string

	context, file, target string
	names, args           []string
	noCache, pull         bool
	progress, output      string
	keep                  int64 // MB
}

func command() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "coracle image build --tag NAME DIRECTORY",
		Short: "build an image from a Dockerfile",
		Long: `Build an image from a Dockerfile, with BuildKit: stages, RUN with mounts and here
documents, COPY --from and --link, ARG, and a cache that later builds use.

Images that the Dockerfile begins with come out of coracled, which pulls them if they
are not there: its mirrors, credentials and policies apply, and an image that was
only built or loaded here can be built on. Names without a registry are looked for
as 'coracle image pull' does: in image.short_name_registry. A '# syntax' line is not followed; the
Dockerfile frontend is BuildKit's own. RUN has the host's network.

One build runs at a time.`,
		Example: `  coracle image build -t registry.example/team/app:2 .
  coracle image build -t localhost/app:test --target test --build-arg VERSION=2 -f build/Dockerfile .
  coracle image build -t localhost/app:2 --pull --no-cache . && coracle image push localhost/app:2 registry.example/app:2`,
		Version:       version(),
		Args:          cobra.ExactArgs(1),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			s.context = args[0]
			if err := s.check(); err != nil {
				return err
			}
			return s.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.SetVersionTemplate("coracle-build {{.Version}}\n")
	f := cmd.Flags()
	f.StringVarP(&s.file, "file", "f", "", "Dockerfile (default DIRECTORY/Dockerfile)")
	f.StringArrayVarP(&s.names, "tag", "t", nil, "name of the image; may be given again")
	f.StringVar(&s.target, "target", "", "stage to build (default the last)")
	f.StringArrayVar(&s.args, "build-arg", nil, "NAME=VALUE of an ARG; NAME alone takes the value from the environment; may be given again")
	f.BoolVar(&s.noCache, "no-cache", false, "run every step, whatever the cache has")
	f.BoolVar(&s.pull, "pull", false, "pull the images to build on also if they are there")
	f.StringVar(&s.progress, "progress", "auto", "auto, tty, plain or quiet")
	f.StringVarP(&s.output, "output", "o", "table", "table, json or yaml")
	f.Int64Var(&s.keep, "cache-size", 10_000, "how large the cache may be after the build, MB")
	f.StringVar(&s.root, "root", "/var/lib/coracle", "directory for what outlives a reboot")
	f.StringVar(&s.state, "state", "/run/coracle", "directory for what a reboot may lose")
	f.StringVar(&s.address, "address", "", "unix socket of coracled (or $CORACLE_ADDRESS); follows --state unless given")
	return cmd
}

// version names the release of BuildKit that it was built with. `coracle upgrade` has each new
// program say its version.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/moby/buildkit" {
				return "with BuildKit " + m.Version
			}
		}
	}
	return "unknown"
}

// check completes the settings.
func (s *settings) check() error {
	if len(s.names) == 0 {
		return errors.New("--tag: name the image")
	}
	for _, n := range s.names {
		if named, err := reference.ParseNormalizedNamed(n); err != nil {
			return fmt.Errorf("--tag %s: %w", n, err)
		} else if _, ok := named.(reference.Digested); ok {
			return fmt.Errorf("--tag %s: a digest is what a build finds out", n)
		}
	}
	switch progressui.DisplayMode(s.progress) {
	case progressui.AutoMode, progressui.TtyMode, progressui.PlainMode, progressui.QuietMode:
	default:
		return fmt.Errorf("--progress %s: it is auto, tty, plain or quiet", s.progress)
	}
	switch s.output {
	case "table", "json", "yaml":
	default:
		return fmt.Errorf("--output %s: it is table, json or yaml", s.output)
	}
	if st, err := os.Stat(s.context); err != nil {
		return err
	} else if !st.IsDir() {
		return fmt.Errorf("%s is not a directory", s.context)
	}
	for _, dir := range []*string{&s.root, &s.state, &s.context} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		*dir = abs
	}
	if s.file == "" {
		s.file = filepath.Join(s.context, "Dockerfile")
	}
	// As the other commands have it; see cmd/coracle/daemon.
	s.address = strings.TrimPrefix(cmp.Or(s.address, os.Getenv("CORACLE_ADDRESS"), filepath.Join(s.state, "coracle.sock")), "unix://")
	return nil
}

// buildArgs are the values of ARGs.
func (s *settings) buildArgs() (map[string]string, error) {
	values := map[string]string{}
	for _, a := range s.args {
		name, value, ok := strings.Cut(a, "=")
		if name == "" {
			return nil, fmt.Errorf("--build-arg %s: it is NAME=VALUE", a)
		}
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				continue // as if it were not given: the Dockerfile's default counts
			}
		}
		values[name] = value
	}
	return values, nil
}
