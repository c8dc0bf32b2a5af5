package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// completeIDs offers the shell the containers under --root as the first argument.
func (a *app) completeIDs(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 || a.globals() != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	e, err := a.engine()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ids, err := e.List(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	for _, id := range ids {
		if strings.HasPrefix(id, begun) {
			out = append(out, id)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
