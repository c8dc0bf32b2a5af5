package resctrl

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mustAllow compares what a class allows with what lines of the configuration say. A line need
// not name all the domains that the class has.
func (g *Group) mustAllow(want []string) error {
	text, err := os.ReadFile(filepath.Join(g.Class, "schemata"))
	if err != nil {
		return g.explain("read schemata", err)
	}
	have := map[string]map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, domains := parse(line); name != "" {
			have[name] = domains
		}
	}
	for _, line := range want {
		name, domains := parse(line)
		for _, id := range slices.Sorted(maps.Keys(domains)) {
			if got := have[name][id]; got != domains[id] {
				return fmt.Errorf("linux.intelRdt: the class %s is there already and has %s:%s=%s where the configuration says %s; leave the schema "+
					"out to take the class as it is, or name another closID",
					filepath.Base(g.Class), name, id, got, strings.TrimSpace(line))
			}
		}
	}
	return nil
}

// parse takes a line such as L3:0=7f0;1=1f apart. Numbers lose leading zeros, and are written
// small, as the kernel may write them otherwise.
func parse(line string) (name string, domains map[string]string) {
	name, rest, _ := strings.Cut(line, ":")
	domains = map[string]string{}
	for _, part := range strings.Split(strings.TrimSpace(rest), ";") {
		if id, value, ok := strings.Cut(part, "="); ok {
			domains[number(id)] = number(value)
		}
	}
	return strings.TrimSpace(name), domains
}

func number(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	if short := strings.TrimLeft(s, "0"); short != "" || s == "" {
		return short
	}
	return "0"
}
