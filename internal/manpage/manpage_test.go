package manpage

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestWrite(t *testing.T) {
	root := &cobra.Command{Use: "tool", Short: "do things", Long: "tool does things.\n.Dots and \\ are kept.", Example: "  tool do -n 1"}
	root.PersistentFlags().String("root", "/r", "directory `DIR` of all")
	do := &cobra.Command{Use: "do THING", Short: "do one", Run: func(*cobra.Command, []string) {}}
	do.Flags().IntP("number", "n", 0, "how many")
	below := &cobra.Command{Use: "below", Short: "further down", Long: "All about it.", Run: func(*cobra.Command, []string) {}}
	hidden := &cobra.Command{Use: "secret", Short: "not for people", Hidden: true, Run: func(*cobra.Command, []string) {}}
	do.AddCommand(below)
	root.AddCommand(do, hidden, Command(Page{}))
	var b strings.Builder
	if err := (Page{ExitStatus: "0, or 1.", SeeAlso: "other(8)"}).Write(&b, root); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{
		".TH TOOL 8\n", "tool \\- do things\n", "\n\\&.Dots and \\e are kept.\n", ".B \\-\\-root DIR\ndirectory DIR of all\n",
		".SS do THING\nDo one.\n", ".B \\-n, \\-\\-number INT\nhow many\n", ".SS do below\nAll about it.\n",
		".SH EXIT STATUS\n0, or 1.\n", ".SH SEE ALSO\nother(8)\n", ".nf\n  tool do \\-n 1\n.fi\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	for _, bad := range []string{"secret", ".SH FILES", "--help"} {
		if strings.Contains(page, bad) {
			t.Errorf("%q in\n%s", bad, page)
		}
	}
}
