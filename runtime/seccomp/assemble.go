package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// maxInsns is the kernel's BPF_MAXINSNS.
const maxInsns = 4096

// maxJump is how far a conditional jump goes: BPF has a byte for it.
const maxJump = 255

// assemble puts the points of a program into a line. Jumps only go forward, so it starts at
// the end: what an instruction leads to has its place before the instruction has.
func assemble(root *node) ([]unix.SockFilter, error) {
	a := assembler{place: map[*node]int{}}
	a.put(root)
	if len(a.backward) > maxInsns {
		return nil, errTooLong
	}
	slices.Reverse(a.backward)
	return a.backward, nil
}

type assembler struct {
	backward []unix.SockFilter
	// place is each node's index in backward: that of the nearest copy, if it has several.
	place map[*node]int
}

func (a *assembler) put(n *node) {
	if _, ok := a.place[n]; ok || len(a.backward) > maxInsns {
		return
	}
	insn := unix.SockFilter{Code: n.code, K: n.k}
	switch {
	case n.no != nil:
		a.put(n.yes)
		a.put(n.no)
		for a.near(n.yes, maxJump) || a.near(n.no, maxJump) {
		}
		insn.Jt, insn.Jf = uint8(a.distance(n.yes)), uint8(a.distance(n.no))
	case n.yes != nil:
		a.put(n.yes)
		a.near(n.yes, 0)
	}
	a.place[n] = len(a.backward)
	a.backward = append(a.backward, insn)
}

// distance is by how many instructions a jump that is put now would pass over to reach n.
func (a *assembler) distance(n *node) int { return len(a.backward) - 1 - a.place[n] }

// near makes sure that n is at most the distance away, and tells if that took something: a
// copy of a return, or a jump without condition, which may be long.
func (a *assembler) near(n *node, distance int) bool {
	if a.distance(n) <= distance || len(a.backward) > maxInsns {
		return false
	}
	insn := unix.SockFilter{Code: codeJump, K: uint32(a.distance(n))}
	if n.code == codeReturn {
		insn = unix.SockFilter{Code: n.code, K: n.k}
	}
	a.place[n] = len(a.backward)
	a.backward = append(a.backward, insn)
	return true
}
