package cli

import (
	"github.com/spf13/cobra"
)

func (a *app) featuresCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "features",
		Short:   "Print this runtime's features, as the runtime spec's features document",
		Example: "  coracle-oci features",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.extra == nil {
				return errCompanion
			}
			return printJSON(a.stdout, a.extra.Features())
		},
	}
}
