package cli

import (
	"strings"
	"testing"
)

func TestNamed(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     "",
		"run x":                                "run",
		"--root run state x":                   "state",
		"--root=/x run x":                      "run",
		"--debug run x":                        "run",
		"--debug=false --log x run --bundle b": "run",
		"--root":                               "",
		"-h run":                               "",
		"--help run":                           "",
		"--nonsense run":                       "",
		"-- run":                               "",
		"- run":                                "",
	} {
		if got := named((&app{}).command().PersistentFlags(), strings.Fields(args)); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

// What is built for one command has to be what is built among all.
func TestFrequentCommands(t *testing.T) {
	all := (&app{}).command()
	for _, c := range all.Commands() {
		one := (&app{args: []string{c.Name(), "x"}}).command()
		found, _, err := one.Find([]string{c.Name()})
		if err != nil || found.Name() != c.Name() || found.UsageString() != c.UsageString() {
			t.Errorf("%s: %v, usage\n%s\nwant\n%s", c.Name(), err, found.UsageString(), c.UsageString())
		}
	}
}
