package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var (
	// commandLine finds commands in indented blocks, and inlineCommand those between backticks.
	commandLine   = regexp.MustCompile(`(?m)^ {4,}(?:sudo )?coracle ((?:[^\n]*\\\n)*[^\n]*)$`)
	inlineCommand = regexp.MustCompile("`(?:sudo )?coracle ([^`\n]+)`")
	word          = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
)

// A page must not tell readers to type what coracle does not know.
func TestCommandsInDocs(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range commandLine.FindAllStringSubmatch(string(text), -1) {
			found++
			line := strings.ReplaceAll(match[1], "\\\n", " ")
			if err := understood(line); err != nil {
				t.Errorf("%s: coracle %s: %v", filepath.Base(page), line, err)
			}
		}
		for _, match := range inlineCommand.FindAllStringSubmatch(string(text), -1) {
			found++
			if err := mentioned(match[1]); err != nil {
				t.Errorf("%s: coracle %s: %v", filepath.Base(page), match[1], err)
			}
		}
	}
	if found < 100 {
		t.Errorf("%d commands are found in %d pages: are they written in another way?", found, len(pages)+1)
	}
}

// make test-cluster-page types the examples of docs/cluster.md: each one names the machine.
func TestClusterPageNamesMachines(t *testing.T) {
	text, err := os.ReadFile("../../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	first := regexp.MustCompile(`(?m)\n(?:|[^ \n].*)\n {4}(.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(first) < 10 {
		t.Errorf("%d examples are found: are they written in another way?", len(first))
	}
	for _, match := range first {
		if !strings.HasPrefix(match[1], "# on ") {
			t.Errorf("docs/cluster.md: the example that starts with %q has no line '# on MACHINE'", match[1])
		}
	}
}

// commands are all, with that which is added when one of them is run.
func commands() *cobra.Command {
	root := command()
	root.InitDefaultCompletionCmd()
	return root
}

// understood says what is wrong with a command line. Nothing is run.
func understood(line string) error {
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, " | ")
	line, _, _ = strings.Cut(line, " >")
	var args []string
	for _, w := range word.FindAllString(line, -1) {
		args = append(args, strings.Trim(w, `'"`))
	}
	cmd, rest, err := commands().Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if err := cmd.ValidateFlagGroups(); err != nil {
		return err
	}
	return nil
}

// mentioned says what is wrong with a command in the text, which may have flags without values, and
// words in capitals for what the reader fills in.
func mentioned(text string) error {
	var words, flags []string
	for _, w := range word.FindAllString(strings.NewReplacer("[", " ", "]", " ").Replace(text), -1) {
		switch {
		case strings.HasPrefix(w, "--"):
			name, _, _ := strings.Cut(strings.TrimPrefix(w, "--"), "=")
			flags = append(flags, name)
		case regexp.MustCompile(`^[a-z]+$`).MatchString(w) && len(flags) == 0:
			words = append(words, w)
		}
	}
	cmd, _, err := commands().Find(words)
	if err != nil {
		return err
	}
	for _, name := range flags {
		if cmd.Flag(name) == nil && name != "" {
			return fmt.Errorf("%s has no flag --%s", cmd.CommandPath(), name)
		}
	}
	return nil
}
