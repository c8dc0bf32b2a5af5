package seccomp

import (
	"math/rand/v2"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// generator makes profiles at random.
type generator struct {
	*rand.Rand
	// mixed lets one call have rules with several actions.
	mixed bool
	// args is how many comparisons a rule has at most.
	args int
}

func newGenerator(seed1, seed2 uint64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed1, seed2))}
}

// fewCalls are chosen from often, so that rules meet: with and without a place in
// socketcall(2), with the highest and the lowest numbers.
var fewCalls = []string{"socket", "read", "semctl", "personality", "clone", "recv", "io_setup", "openat2"}

func (g *generator) profile() *specs.LinuxSeccomp {
	p := &specs.LinuxSeccomp{
		DefaultAction: pick(g, specs.ActErrno, specs.ActErrno, specs.ActKillProcess, specs.ActTrap, specs.ActAllow, specs.ActLog, specs.ActTrace),
		Architectures: []specs.Arch{specs.ArchX86_64},
		Flags:         []specs.LinuxSeccompFlag{},
		ListenerPath:  "/agent",
	}
	if g.IntN(2) == 0 {
		p.DefaultErrnoRet = g.errno()
	}
	for _, a := range []specs.Arch{specs.ArchX86, specs.ArchX32, specs.ArchARM} {
		if g.IntN(3) > 0 {
			p.Architectures = append(p.Architectures, a)
		}
	}
	actions := map[string]specs.LinuxSyscall{}
	for range 1 + g.IntN(40) {
		for _, name := range g.names() {
			rule := g.rule()
			if old, ok := actions[name]; ok && !g.mixed {
				rule.Action, rule.ErrnoRet = old.Action, old.ErrnoRet
			}
			if rule.Action == specs.ActNotify && name == "write" {
				rule.Action = specs.ActTrap
			}
			actions[name] = rule
			rule.Names = []string{name}
			p.Syscalls = append(p.Syscalls, rule)
		}
	}
	return p
}

func (g *generator) names() []string {
	if g.IntN(3) > 0 {
		return []string{pick(g, fewCalls...)}
	}
	var names []string
	for range 1 + g.IntN(8) {
		names = append(names, table[g.IntN(len(table))].name)
	}
	return names
}

func (g *generator) rule() specs.LinuxSyscall {
	r := specs.LinuxSyscall{
		Action: pick(g, specs.ActAllow, specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActKillThread,
			specs.ActKillProcess, specs.ActTrap, specs.ActTrace, specs.ActLog, specs.ActNotify),
	}
	if g.IntN(2) == 0 {
		r.ErrnoRet = g.errno()
	}
	if g.args > 0 {
		for range g.IntN(g.args + 1) {
			r.Args = append(r.Args, specs.LinuxSeccompArg{
				Index: uint(g.IntN(3)), Value: g.value(), ValueTwo: g.value(),
				Op: pick(g, specs.OpEqualTo, specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual,
					specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual),
			})
		}
	}
	return r
}

func (g *generator) value() uint64 {
	v := pick[uint64](g, 0, 1, 2, 3, 8, 0xff, 0x7e020000, 1<<31, 1<<32-1)
	switch g.IntN(4) {
	case 0:
		v |= pick[uint64](g, 1, 2, 1<<31, 1<<32-1) << 32
	case 1:
		v += g.Uint64N(4)
	}
	return v
}

func (g *generator) errno() *uint {
	return new(pick(g, uint(1), 13, 38, 4094))
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }
