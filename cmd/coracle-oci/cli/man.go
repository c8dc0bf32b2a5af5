package cli

import (
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/internal/manpage"
)

// manCommand prints the manual page, made of the commands themselves.
func (a *app) manCommand() *cobra.Command {
	cmd := manpage.Command(manpage.Page{
		ExitStatus: `0 if all went well, 1 if not. run, restore and exec end with the program's status in the
foreground, 128 + number for a signal; exec ends with 255 if the program could not be started.`,
	})
	cmd.Short = "Print the manual page, for man(1)"
	cmd.Example = "  coracle-oci man > /usr/local/share/man/man8/coracle-oci.8"
	cmd.SetOut(a.stdout)
	return cmd
}
