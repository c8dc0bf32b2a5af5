package seccomp

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Summary counts the system calls of an architecture by what a program does with them.
type Summary struct {
	Arch specs.Arch `json:"arch"`
	// Allowed are made, whatever their arguments; Denied never are; Conditional are made with
	// some arguments and not with others. A call that is logged, or handed to a tracer, counts
	// as made.
	Allowed     int `json:"allowed"`
	Conditional int `json:"conditional"`
	Denied      int `json:"denied"`
}

// Summarize says what a compiled program decides for the architectures of its profile that
// this machine can execute. It follows the program itself, not the profile.
func Summarize(program []unix.SockFilter, of []specs.Arch) ([]Summary, error) {
	list, err := archs(of, thisHost)
	if err != nil {
		return nil, err
	}
	var out []Summary
	for _, a := range list {
		s := Summary{Arch: a.name}
		for i := range table {
			nr, ok := table[i].number(a)
			if !ok {
				continue
			}
			w := walk{program: program, arch: a.audit, nr: nr, seen: map[state]bool{}}
			w.from(state{})
			switch {
			case w.made && w.refused:
				s.Conditional++
			case w.made:
				s.Allowed++
			default:
				s.Denied++
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// walk follows all ways through a program that a call can take, by its arguments.
type walk struct {
	program       []unix.SockFilter
	arch, nr      uint32
	seen          map[state]bool
	made, refused bool
}

// state is a place in the program, with the accumulator if that is known.
type state struct {
	pc    int
	known bool
	acc   uint32
}

func (w *walk) from(s state) {
	for ; s.pc < len(w.program) && !w.seen[s]; s.pc++ {
		w.seen[s] = true
		in := w.program[s.pc]
		yes := false
		switch in.Code {
		case codeReturn:
			if permits(in.K) {
				w.made = true
			} else {
				w.refused = true
			}
			return
		case codeLoad:
			s.known = in.K == numberWord || in.K == archWord
			s.acc = w.nr
			if in.K == archWord {
				s.acc = w.arch
			}
			if !s.known {
				s.acc = 0
			}
			continue
		case codeAnd:
			s.acc &= in.K
			continue
		case codeJump:
			s.pc += int(in.K)
			continue
		case codeEqual:
			yes = s.acc == in.K
		case codeAbove:
			yes = s.acc > in.K
		case codeFrom:
			yes = s.acc >= in.K
		case codeSet:
			yes = s.acc&in.K != 0
		}
		if !s.known {
			w.from(state{pc: s.pc + 1 + int(in.Jt)})
			yes = false
		}
		if yes {
			s.pc += int(in.Jt)
		} else {
			s.pc += int(in.Jf)
		}
	}
}
