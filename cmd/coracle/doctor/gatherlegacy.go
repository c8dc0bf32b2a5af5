package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// readLegacy finds chains of iptables-legacy, which nftables does not show, as readNFTables does.
func readLegacy(ctx context.Context, w firewalled) (found []Firewall, unread string) {
	tables, unread := readLegacyTables(ctx, w.families())
	for _, t := range tables {
		for _, chain := range []string{"FORWARD", "INPUT"} {
			dropped := map[bool][]string{t.ipv6: t.dropped(w, chain, t.ipv6)}
			found = w.found(found, Firewall{Manager: t.managerOf(chain), Table: t.name(), Chain: chain}, dropped)
		}
	}
	return found, unread
}

// legacyTable is the table filter of a family.
type legacyTable struct {
	legacyRules
	ipv6 bool
}

func (t legacyTable) name() string {
	if t.ipv6 {
		return "ip6 filter"
	}
	return "ip filter"
}

// managerOf is the program whose chain it is.
func (t legacyTable) managerOf(chain string) string {
	manager := t.manager()
	if chain == "INPUT" && manager == "docker" { // which has no rules there
		return "iptables-legacy"
	}
	return manager
}

// readLegacyTables reads the rules of iptables-legacy of some families, true for IPv6. The program
// is only executed where the kernel has its tables: it would make them. unread says why some could
// not be read.
func readLegacyTables(ctx context.Context, families []bool) (all []legacyTable, unread string) {
	for _, family := range []struct {
		names, program string
		ipv6           bool
	}{
		{"/proc/thread-self/net/ip_tables_names", "iptables-legacy", false},
		{"/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy", true},
	} {
		names, err := os.ReadFile(family.names)
		if err != nil || !slices.Contains(strings.Fields(string(names)), "filter") || !slices.Contains(families, family.ipv6) {
			continue
		}
		program, err := exec.LookPath(family.program)
		if err != nil {
			unread = family.program + " is not installed"
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		out, err := exec.CommandContext(ctx, program, "-w", "1", "-S").Output()
		cancel()
		if err != nil {
			unread = fmt.Sprintf("%s -S: %v", family.program, err)
			continue
		}
		all = append(all, legacyTable{parseLegacy(string(out)), family.ipv6})
	}
	return all, unread
}

// legacyRules are the rules of a table, by chain, as words of iptables -S, without "-A CHAIN".
type legacyRules struct {
	policies map[string]string
	chains   map[string][][]string
}

func parseLegacy(text string) legacyRules {
	l := legacyRules{map[string]string{}, map[string][][]string{}}
	for line := range strings.Lines(text) {
		words := wordsOf(line)
		if len(words) < 2 {
			continue
		}
		switch chain := words[1]; words[0] {
		case "-P":
			if len(words) > 2 {
				l.policies[chain] = words[2]
			}
		case "-N":
			l.chains[chain] = nil // its rules follow
		case "-A":
			l.chains[chain] = append(l.chains[chain], words[2:])
		}
	}
	return l
}

// wordsOf splits a line, in which comments are quoted.
func wordsOf(line string) (words []string) {
	for part := range strings.SplitSeq(strings.TrimSpace(line), " ") {
		if n := len(words); n > 0 && strings.HasPrefix(words[n-1], "\"") && (len(words[n-1]) == 1 || !strings.HasSuffix(words[n-1], "\"")) {
			words[n-1] += " " + part
		} else if part != "" {
			words = append(words, part)
		}
	}
	return words
}

func (l legacyRules) manager() string {
	for _, known := range []struct{ prefix, manager string }{{"ufw", "ufw"}, {"DOCKER", "docker"}} {
		for chain := range l.chains {
			if strings.HasPrefix(chain, known.prefix) {
				return known.manager
			}
		}
	}
	return "iptables-legacy"
}

// dropped is what the chain FORWARD or INPUT drops of pods' packets, as readNFTables finds it.
func (l legacyRules) dropped(w firewalled, chain string, ipv6 bool) []string {
	visited := map[string]bool{}
	return w.dropped(w.packets(chain == "INPUT", ipv6), func(p packet) (drops, sure bool) { return l.drops(chain, p, visited) },
		func() bool { return l.names(w.ranges, visited) })
}

// drops is as that of a ruleset.
func (l legacyRules) drops(chain string, p packet, visited map[string]bool) (drops, sure bool) {
	f := legacyFate{legacyRules: l, packet: p, visited: visited}
	ends := f.pass(chain, 0)
	return ends == dropped || ends == goesOn && l.policies[chain] == "DROP", !f.mayAccept
}

func (l legacyRules) names(ranges []netip.Prefix, chains map[string]bool) bool {
	for chain := range chains {
		for _, words := range l.chains[chain] {
			if slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return slices.Contains(words, r.String()) }) {
				return true
			}
		}
	}
	return false
}

// legacyFate is the way of a packet through a chain.
type legacyFate struct {
	legacyRules
	packet
	visited   map[string]bool // see fate, as for the next
	mayAccept bool
}

func (f *legacyFate) pass(chain string, depth int) end {
	if depth > deepest {
		return goesOn
	}
	f.visited[chain] = true
	for _, words := range f.chains[chain] {
		matches, target, leaves := f.evaluate(words)
		if matches == no || target == "" {
			continue
		}
		var then end
		switch target {
		case "ACCEPT", "QUEUE", "NFQUEUE":
			then = accepted
		case "DROP", "REJECT":
			then = dropped
		case "RETURN":
			leaves = true
		default: // a chain, or a target that lets the packet go on
			_, isChain := f.chains[target]
			leaves = leaves && isChain
			then = f.pass(target, depth+1)
		}
		switch {
		case matches == maybe:
			f.mayAccept = f.mayAccept || then == accepted || then == goesOn && leaves
		case then != goesOn || leaves:
			return then
		}
	}
	return goesOn
}

// evaluate says whether a rule matches, and its target; leaves says that what comes after the
// target is passed over (-g).
func (f *legacyFate) evaluate(words []string) (matches match, target string, leaves bool) {
	invert := false
	for i := 0; i < len(words); i++ {
		value := func() string {
			if i++; i < len(words) {
				return words[i]
			}
			return ""
		}
		var m match
		switch option := words[i]; option {
		case "!":
			invert = true
			continue
		case "-j", "-g":
			return matches, value(), option == "-g" // what follows are the target's options
		case "-s", "-d", "-i", "-o", "-p", "-m", "--comment", "--ctstate", "--state", "--dst-type", "--dport":
			m = f.fits(option, value())
		default: // with its values
			m = maybe
		}
		m, invert = inverted(m, invert), false
		switch m {
		case no:
			return no, "", false
		case maybe:
			matches = maybe
		}
	}
	return matches, "", false
}

// fits says whether an option and its value match.
func (f *legacyFate) fits(option, value string) match {
	switch option {
	case "-s":
		return within(f.source, value)
	case "-d":
		return within(f.destination, value)
	case "-i":
		return named(f.in.name, value)
	case "-o":
		return named(f.out.name, value)
	case "-p":
		if value != "all" && (value != "tcp" || f.udp) && (value != "udp" || !f.udp) {
			return no
		}
	case "--ctstate", "--state":
		return f.inState(value)
	case "--dst-type":
		if value != "LOCAL" || !f.local {
			return maybe
		}
	case "--dport":
		switch {
		case f.port == 0 || strings.Contains(value, ":"): // a range
			return maybe
		case value != strconv.Itoa(int(f.port)):
			return no
		}
	}
	return yes
}

// inState says whether the connection is in one of the states.
func (f *legacyFate) inState(states string) match {
	for state := range strings.SplitSeq(states, ",") {
		switch {
		case state == "NEW" && f.state == stateNew, state == "ESTABLISHED" && f.state == stateEstablished,
			state == "UNTRACKED" && f.state == stateUntracked, state == "DNAT" && f.translated:
			return yes
		}
	}
	return no
}

func within(a netip.Addr, network string) match {
	p, err := netip.ParsePrefix(network)
	if err != nil || !a.IsValid() {
		return maybe
	}
	if p.Contains(a) {
		return yes
	}
	return no
}

// named compares the name of an interface, "" if it is not known, with one that may end in "+".
func named(name, with string) match {
	start, any := strings.CutSuffix(with, "+")
	switch {
	case any && start == "":
		return yes
	case name == "" && with == "lo": // no pod's packet comes from there, or goes there
		return no
	case name == "":
		return maybe
	case name == with || any && strings.HasPrefix(name, start):
		return yes
	}
	return no
}
