package seccomp

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// meaning is what a profile says, call by call, in the plainest way: what Compile's programs
// must do.
type meaning struct {
	other  uint32
	byArch map[*arch]*plainRules
	on     host
}

type plainRules struct {
	last  uint32
	named int // how many times a call is
	// foreign: one of them is none of this architecture.
	foreign bool
	rules   map[uint32][]plainRule
	order   map[uint32]rules // by index in action's place
}

type plainRule struct {
	args   []specs.LinuxSeccompArg
	action uint32
}

func newMeaning(t testing.TB, p *specs.LinuxSeccomp, on host) *meaning {
	t.Helper()
	must := func(action uint32, err error) uint32 {
		if err != nil {
			t.Fatal(err)
		}
		return action
	}
	m := &meaning{byArch: map[*arch]*plainRules{}, on: on, other: must(action(p.DefaultAction, p.DefaultErrnoRet))}
	for _, a := range append([]*arch{on.native}, on.also...) {
		if a == on.native || slices.Contains(p.Architectures, a.name) {
			m.byArch[a] = &plainRules{rules: map[uint32][]plainRule{}}
		}
	}
	for _, s := range p.Syscalls {
		act := must(action(s.Action, s.ErrnoRet))
		for _, name := range s.Names {
			m.add(name, act, s.Args)
		}
	}
	return m
}

func (m *meaning) add(name string, act uint32, args []specs.LinuxSeccompArg) {
	call, ok := lookup(name)
	if !ok {
		return
	}
	alternatives := [][]specs.LinuxSeccompArg{args}
	if indices := map[uint]bool{}; len(args) > 0 {
		alternatives = nil
		for _, a := range args {
			indices[a.Index] = true
			alternatives = append(alternatives, []specs.LinuxSeccompArg{a})
		}
		if len(indices) == len(args) {
			alternatives = [][]specs.LinuxSeccompArg{args}
		}
	}
	for a, plain := range m.byArch {
		mux, muxed := multiplexed[name]
		muxed = muxed && a == archX86
		nr := call.numbers[a.column]
		if nr != absent && !muxed {
			plain.last = max(plain.last, uint32(nr)|a.bit)
		}
		plain.named++
		plain.foreign = plain.foreign || nr == absent
		if act == m.other {
			continue
		}
		for _, args := range alternatives {
			if nr != absent {
				plain.rules[uint32(nr)|a.bit] = append(plain.rules[uint32(nr)|a.bit], plainRule{args, act})
			}
			if muxed {
				in := []specs.LinuxSeccompArg{{Index: 0, Value: mux.call, Op: specs.OpEqualTo}}
				for _, arg := range args {
					if arg.Index != 0 {
						in = append(in, arg)
					}
				}
				plain.rules[mux.nr] = append(plain.rules[mux.nr], plainRule{in, act})
			}
		}
	}
}

// of is the action for a call.
func (m *meaning) of(d data) uint32 {
	a := m.arch(d)
	if a == nil {
		return unix.SECCOMP_RET_KILL_THREAD
	}
	plain := m.byArch[a]
	denies := m.other != unix.SECCOMP_RET_ALLOW && m.other != unix.SECCOMP_RET_LOG && m.other&0xffff0000 != unix.SECCOMP_RET_TRACE
	x32 := a == archX8664 && d.nr&x32Bit != 0 // which is not in the profile
	if denies && plain != nil && !x32 && plain.last != 0 && d.nr > plain.last {
		return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
	if a == archX8664 && m.byArch[archX32] == nil && int32(d.nr) != -1 && d.nr >= x32Bit {
		return unix.SECCOMP_RET_KILL_THREAD
	}
	for _, r := range plain.sorted(d.nr, a) {
		if r := plain.rules[d.nr][r.action]; r.holds(d, a.wide) {
			return r.action
		}
	}
	return m.other
}

// sorted are the rules of a call in the order in which they are tried: this much is taken
// from the program. The first one without conditions is the first of them in the profile.
func (p *plainRules) sorted(nr uint32, a *arch) rules {
	if p.order == nil {
		p.order = map[uint32]rules{}
		for nr, list := range p.rules {
			var order rules
			for i, r := range list {
				order = append(order, rule{when: inOrder(r.args, a), action: uint32(i)})
			}
			p.order[nr] = order.sorted()
		}
	}
	return p.order[nr]
}

func (m *meaning) arch(d data) *arch {
	for _, a := range []*arch{archX32, archX8664, archX86, archARM64, archARM} {
		if m.byArch[a] != nil && a.audit == d.arch && (a != archX32 || d.nr&x32Bit != 0) {
			return a
		}
	}
	return nil
}

func inOrder(args []specs.LinuxSeccompArg, a *arch) []comparison {
	var list []comparison
	for _, arg := range args {
		all, _ := comparisons([]specs.LinuxSeccompArg{arg})
		list = append(list, all[0][0])
	}
	return normal(list, a)
}

func (r plainRule) holds(d data, wide bool) bool {
	for _, a := range r.args {
		arg, value, two := d.args[a.Index], a.Value, a.ValueTwo
		if !wide {
			arg, value, two = arg&0xffffffff, value&0xffffffff, two&0xffffffff
		}
		var is bool
		switch a.Op {
		case specs.OpNotEqual:
			is = arg != value
		case specs.OpLessThan:
			is = arg < value
		case specs.OpLessEqual:
			is = arg <= value
		case specs.OpEqualTo:
			is = arg == value
		case specs.OpGreaterEqual:
			is = arg >= value
		case specs.OpGreaterThan:
			is = arg > value
		case specs.OpMaskedEqual:
			is = arg&value == two&value
		}
		if !is {
			return false
		}
	}
	return true
}
