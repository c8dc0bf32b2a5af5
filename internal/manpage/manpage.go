// Package manpage makes a program's manual page out of its commands: what --help says is what
// man(1) shows, written once.
package manpage

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Page is what the commands do not say.
type Page struct {
	// ExitStatus, Files and SeeAlso are sections of plain text; those that are empty are left out.
	ExitStatus, Files, SeeAlso string
}

// Command returns the command that prints the page of its root command.
func Command(p Page) *cobra.Command {
	return &cobra.Command{
		Use:   "man",
		Short: "print the manual page, for man(1)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.Write(cmd.OutOrStdout(), cmd.Root())
		},
	}
}

// Write writes man(7) text.
func (p Page) Write(w io.Writer, root *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 8\n.SH NAME\n%s \\- %s\n", strings.ToUpper(root.Name()), root.Name(), roff(root.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n[flags] COMMAND\n", roff(root.Name()))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", roff(root.Long))
	if root.HasPersistentFlags() {
		b.WriteString(".SH GLOBAL FLAGS\n")
		flags(&b, root.PersistentFlags())
	}
	if own := root.LocalNonPersistentFlags(); root.Runnable() && own.HasAvailableFlags() {
		b.WriteString(".SH FLAGS\n")
		flags(&b, own)
	}
	b.WriteString(".SH COMMANDS\n")
	for _, c := range root.Commands() {
		command(&b, "", c)
	}
	for _, s := range []struct{ title, text string }{
		{"EXIT STATUS", p.ExitStatus}, {"FILES", p.Files}, {"SEE ALSO", p.SeeAlso},
	} {
		if s.text != "" {
			fmt.Fprintf(&b, ".SH %s\n%s\n", s.title, roff(s.text))
		}
	}
	b.WriteString(".SH EXAMPLES\n")
	example(&b, root.Example)
	_, err := io.WriteString(w, b.String())
	return err
}

// command writes a command and those below it, whose names begin with the path of those above.
func command(b *strings.Builder, above string, c *cobra.Command) {
	if !c.IsAvailableCommand() || c.Name() == "completion" || c.Name() == "help" {
		return
	}
	fmt.Fprintf(b, ".SS %s\n", roff(above+c.Use))
	text := c.Long
	if text == "" {
		text = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	b.WriteString(roff(text) + "\n")
	flags(b, c.LocalFlags())
	example(b, c.Example)
	for _, below := range c.Commands() {
		command(b, above+c.Name()+" ", below)
	}
}

func flags(b *strings.Builder, all *pflag.FlagSet) {
	all.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			name += " " + strings.ToUpper(value)
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(name), roff(usage))
	})
}

func example(b *strings.Builder, text string) {
	if text != "" {
		fmt.Fprintf(b, ".PP\n.nf\n%s\n.fi\n", roff(text))
	}
}

// roff escapes what troff would take for itself: backslashes, hyphens that are to stay
// hyphens, and a dot or quote at a line's beginning.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
