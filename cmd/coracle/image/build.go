package image

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

// builder is the program behind `coracle image build`: BuildKit's client is larger than all
// of this one.
const builder = "coracle-build"

func buildCommand(program func(name string) (path string, err error)) *cobra.Command {
	return &cobra.Command{
		Use:                "build --tag NAME DIRECTORY",
		Short:              "build an image from a Dockerfile (with " + builder + ", if it is installed)",
		Example:            `  coracle image build -t registry.example/team/app:2 .`,
		DisableFlagParsing: true, // they are the builder's
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := program(builder)
			if err != nil {
				return fmt.Errorf("image build needs %s next to coracle or on PATH: 'make builder' builds it, 'make install' installs it: %w", builder,
					err)
			}
			return fmt.Errorf("run %s: %w", path, syscall.Exec(path, append([]string{builder}, args...), os.Environ()))
		},
	}
}
