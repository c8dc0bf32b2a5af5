package seccomp

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// data is struct seccomp_data.
type data struct {
	nr   uint32
	arch uint32
	ip   uint64
	args [maxArgs]uint64
}

// run is what the kernel does: it returns the program's action and how many instructions
// that took.
func run(prog []unix.SockFilter, d data) (action uint32, steps int, err error) {
	var mem [64]byte
	binary.LittleEndian.PutUint32(mem[0:], d.nr)
	binary.LittleEndian.PutUint32(mem[4:], d.arch)
	binary.LittleEndian.PutUint64(mem[8:], d.ip)
	for i, a := range d.args {
		binary.LittleEndian.PutUint64(mem[16+8*i:], a)
	}
	var acc uint32
	for pc := 0; pc < len(prog); pc++ {
		steps++
		in := prog[pc]
		var jump bool
		switch in.Code {
		case codeReturn:
			return in.K, steps, nil
		case codeLoad:
			if in.K%4 != 0 || in.K >= uint32(len(mem)) {
				return 0, steps, fmt.Errorf("instruction %d loads from %d", pc, in.K)
			}
			acc = binary.LittleEndian.Uint32(mem[in.K:])
			continue
		case codeAnd:
			acc &= in.K
			continue
		case codeJump:
			pc += int(in.K)
			continue
		case codeEqual:
			jump = acc == in.K
		case codeAbove:
			jump = acc > in.K
		case codeFrom:
			jump = acc >= in.K
		case codeSet:
			jump = acc&in.K != 0
		default:
			return 0, steps, fmt.Errorf("instruction %d has code %#x", pc, in.Code)
		}
		if jump {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	return 0, steps, fmt.Errorf("ran off the end")
}

// valid is what the kernel demands of a program (bpf_check_classic, seccomp_check_filter).
func valid(prog []unix.SockFilter) error {
	if len(prog) == 0 || len(prog) > 4096 {
		return fmt.Errorf("%d instructions", len(prog))
	}
	for pc, in := range prog {
		left := len(prog) - pc - 1
		switch in.Code {
		case codeReturn, codeAnd:
		case codeLoad:
			if in.K%4 != 0 || in.K >= 64 {
				return fmt.Errorf("instruction %d loads from %d", pc, in.K)
			}
		case codeJump:
			if in.K >= uint32(left) {
				return fmt.Errorf("instruction %d jumps by %d, %d are left", pc, in.K, left)
			}
		case codeEqual, codeAbove, codeFrom, codeSet:
			if int(in.Jt) >= left || int(in.Jf) >= left {
				return fmt.Errorf("instruction %d jumps by %d or %d, %d are left", pc, in.Jt, in.Jf, left)
			}
		default:
			return fmt.Errorf("instruction %d has code %#x", pc, in.Code)
		}
	}
	if prog[len(prog)-1].Code != codeReturn {
		return fmt.Errorf("the last instruction does not return")
	}
	return nil
}

// mustRun is run for a program that is valid.
func mustRun(t testing.TB, prog []unix.SockFilter, d data) uint32 {
	t.Helper()
	action, _, err := run(prog, d)
	if err != nil {
		t.Fatalf("run with %+v: %v", d, err)
	}
	return action
}
