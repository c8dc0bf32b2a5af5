package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func (a *app) specCommand() *cobra.Command {
	var (
		bundle   string
		rootless bool
	)
	cmd := &cobra.Command{
		Use:     "spec",
		Short:   "Write an example config.json",
		Example: "  coracle-oci spec --bundle box && vi box/config.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			spec := Example()
			if rootless {
				ForUser(spec)
			}
			data, err := json.MarshalIndent(spec, "", "\t")
			if err != nil {
				return err
			}
			path := filepath.Join(bundle, "config.json")
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if errors.Is(err, os.ErrExist) {
				return fmt.Errorf("%s exists, remove it first", path)
			}
			if err != nil {
				return err
			}
			_, err = f.Write(append(data, '\n'))
			return errors.Join(err, f.Close())
		},
	}
	cmd.Flags().StringVarP(&bundle, "bundle", "b", ".", "directory to write it to")
	cmd.Flags().BoolVar(&rootless, "rootless", false, "for a user without rights")
	return cmd
}
