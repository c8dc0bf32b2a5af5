package plan_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/plan"
)

// The layout of zygote.h.
const (
	codeBase  = 0x1_0000_0000
	codeSlots = 1024
	insnSize  = 72
	firstOwn  = 0xf000 // operations that are no system calls
	lastOwn   = 0xf006
)

// check encodes a plan and looks whether the zygote could go wrong with it: whether every skip
// goes forward and ends in the code, every slot exists, and every address of the code is
// within its data.
func check(p *plan.Plan, f plan.Features) error {
	code, err := p.Encode(f)
	if err != nil {
		return err
	}
	insns := code.Insns * insnSize
	if len(code.Bytes) < insns {
		return fmt.Errorf("%d instructions in %d bytes", code.Insns, len(code.Bytes))
	}
	low := uint64(codeBase + codeSlots*8 + insns)
	high := low + uint64(len(code.Bytes)-insns)
	for i := range code.Insns {
		if err := checkInsn(code.Bytes[i*insnSize:][:insnSize], code.Insns-i-1, low, high); err != nil {
			return fmt.Errorf("instruction %d: %w", i, err)
		}
	}
	return nil
}

func checkInsn(b []byte, after int, low, high uint64) error {
	le := binary.LittleEndian
	nr, slots, out := le.Uint16(b), b[2], le.Uint16(b[4:])
	ok, forgive, skip := le.Uint16(b[6:]), le.Uint64(b[8:]), le.Uint16(b[16:])
	switch {
	case nr > 600 && (nr < firstOwn || nr > lastOwn):
		return fmt.Errorf("is no operation: %#x", nr)
	case b[3] > 1 || out >= codeSlots:
		return fmt.Errorf("its result goes to slot %d", out)
	case int(ok) > after:
		return fmt.Errorf("skips %d after success, of %d", ok, after)
	case int(skip) > after:
		return fmt.Errorf("skips %d after an error, of %d", skip, after)
	case skip != 0 && forgive == 0:
		return errors.New("skips after an error that is not forgiven")
	case slots>>6 != 0:
		return fmt.Errorf("takes slots %#x of 6 arguments", slots)
	}
	for k := range 6 {
		v := le.Uint64(b[24+8*k:])
		switch {
		case slots>>k&1 != 0 && v >= codeSlots:
			return fmt.Errorf("argument %d is slot %d", k, v)
		case slots>>k&1 == 0 && v >= codeBase && v < 2*codeBase && (v < low || v >= high):
			return fmt.Errorf("argument %d points to %#x, data is %#x to %#x", k, v, low, high)
		}
	}
	return nil
}

// FuzzEncode encodes plans of random operations, in any order and of any content.
func FuzzEncode(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed, uint8(seed), seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, size uint8, attrs bool) {
		p := randomPlan(rand.New(rand.NewPCG(seed, seed)), int(size))
		if err := check(p, plan.Features{MountSetattr: attrs}); err != nil {
			t.Errorf("%v in\n%s", err, p.Describe())
		}
		for i, op := range p.Ops {
			if op.String() == "" {
				t.Errorf("operation %d has no words: %#v", i, op)
			}
		}
	})
}

// TestTooLong has a PATH of so many directories that skips would not fit into their field.
func TestTooLong(t *testing.T) {
	find := plan.FindProgram{Name: "x", Env: []string{"PATH=" + strings.Repeat(":", 1<<16)}}
	p := &plan.Plan{Opens: []plan.Open{{Name: plan.FdSync}}, Ops: []plan.Op{find}}
	if _, err := p.Encode(plan.Features{}); err == nil || !strings.Contains(err.Error(), "fewer directories in PATH") {
		t.Errorf("error %v", err)
	}
}

// randomPlan has at most n operations, between those without which none is encoded: the first
// enters the root.
func randomPlan(r *rand.Rand, n int) *plan.Plan {
	opens := 1 + r.IntN(8)
	p := &plan.Plan{Ops: []plan.Op{plan.Enter{Root: 0}}}
	for i := range opens {
		p.Opens = append(p.Opens, plan.Open{Name: fmt.Sprint("open ", i)})
	}
	g := generator{r, opens}
	for range r.IntN(n + 1) {
		p.Ops = append(p.Ops, g.op())
	}
	return p
}

type generator struct {
	*rand.Rand
	opens int
}

func (g generator) fd() plan.Fd       { return plan.Fd(g.IntN(g.opens)) }
func (g generator) flags() uintptr    { return uintptr(g.Uint32()) }
func (g generator) flip() bool        { return g.IntN(2) == 0 }
func (g generator) caps() plan.CapSet { return plan.CapSet(g.Uint64()) }

func (g generator) text() string {
	words := []string{
		"", "/", "/a", "/a/b/../c", "relative", "/proc/cpuinfo", "/proc/x", "//", "..", "ä b",
		"/" + string(make([]byte, g.IntN(300))),
	}
	return words[g.IntN(len(words))]
}

func (g generator) texts() []string {
	list := []string{g.text()}
	for range g.IntN(4) {
		list = append(list, g.text(), "PATH=/bin:/usr/bin::")
	}
	return list
}

func (g generator) fds() []plan.Fd {
	var list []plan.Fd
	for range g.IntN(5) {
		list = append(list, g.fd())
	}
	return list
}

func (g generator) op() plan.Op {
	all := []func() plan.Op{
		func() plan.Op {
			return plan.Mount{
				Target: g.text(), Type: g.text(), Source: g.text(), Flags: g.flags(), Data: g.text(), ReadonlyLater: g.flip(),
				Propagation: g.flags(), KeepMode: g.flip(), CopyUp: g.flip(), Label: g.text(),
			}
		},
		func() plan.Op { return plan.Finish{ReadonlyRoot: g.flip(), RootFlags: g.flags()} },
		func() plan.Op {
			return plan.Attach{Tree: g.fd(), From: g.text(), Target: g.text(), Dir: g.flip(), Flags: g.flags(), Propagation: g.flags()}
		},
		func() plan.Op { return plan.Mask{Path: g.text(), Label: g.text()} },
		func() plan.Op { return plan.Readonly{Path: g.text()} },
		func() plan.Op { return plan.Symlink{To: g.text(), Path: g.text()} },
		func() plan.Op { return plan.MakeDir{Path: g.text()} },
		func() plan.Op {
			return plan.Device{Path: g.text(), Type: g.Uint32(), Major: g.Uint32(), Minor: g.Uint32(), Mode: g.Uint32(), UID: g.Uint32()}
		},
		func() plan.Op { return plan.Setns{Fd: g.fd(), Types: plan.Namespaces(g.Uint32()), Path: g.text()} },
		func() plan.Op { return plan.Unshare{Types: plan.Namespaces(g.Uint32())} },
		func() plan.Op { return plan.Wait{For: plan.PointMappings + plan.Point(g.IntN(6))} },
		func() plan.Op { return plan.JoinCgroups{Tasks: g.fds()} },
		func() plan.Op { return plan.Fork{} },
		func() plan.Op { return plan.BecomeRoot{} },
		func() plan.Op { return plan.LoopbackUp{} },
		func() plan.Op { return plan.Hostname{Name: g.text(), Domain: g.flip()} },
		func() plan.Op {
			return plan.WriteProc{Path: g.text(), Value: g.text(), What: "write", Missing: g.text()}
		},
		func() plan.Op {
			return plan.Rlimit{Name: g.text(), Resource: g.IntN(20), Soft: g.Uint64(), Hard: g.Uint64()}
		},
		func() plan.Op {
			return plan.Terminal{Console: g.fd(), Width: uint16(g.Uint32()), Height: uint16(g.Uint32()), UID: g.Uint32(), Bind: g.flip()}
		},
		func() plan.Op { return plan.Session{Terminal: g.flip()} },
		func() plan.Op { return plan.Stdio{Fds: [3]plan.Fd{g.fd(), g.fd(), g.fd()}} },
		func() plan.Op { return plan.KeepFds{Files: g.fds(), Gate: plan.Fd(g.IntN(g.opens+1) - 1)} },
		func() plan.Op {
			return plan.Seccomp{Filter: make([]unix.SockFilter, g.IntN(50)), Flags: uint(g.Uint32())}
		},
		func() plan.Op { return plan.Chdir{Path: g.text(), First: g.flip()} },
		func() plan.Op { return plan.Umask{Mask: g.Uint32()} },
		func() plan.Op { return plan.NoNewPrivs{} },
		func() plan.Op { return plan.Keyring{Name: g.text()} },
		func() plan.Op {
			return plan.User{
				UID: g.Uint32(), GID: g.Uint32(), Groups: make([]uint32, g.IntN(9)), NoGroups: g.flip(),
				Caps: plan.Caps{Bounding: g.caps(), Effective: g.caps(), Permitted: g.caps(), Inheritable: g.caps(), Ambient: g.caps()},
			}
		},
		func() plan.Op { return plan.FindProgram{Name: g.text(), Env: g.texts()} },
		func() plan.Op { return plan.Execute{Args: g.texts(), Env: g.texts()} },
		func() plan.Op { return plan.Leave{Propagation: g.flags()} },
		func() plan.Op { return plan.Keep{} },
		func() plan.Op { return plan.Joined{} },
		func() plan.Op { return plan.EndBySignals{} },
		func() plan.Op { return plan.Gate{} },
		func() plan.Op { return plan.MemoryPolicy{Mode: g.text(), Nodes: g.text()} },
		func() plan.Op {
			return plan.Take{Into: g.fd(), Tree: &plan.Tree{
				Path: g.text(), Recursive: g.flip(), Set: plan.Attrs(g.Uint32()), Propagation: g.flags(),
				Proc: g.flip(), Device: &[2]uint32{g.Uint32(), g.Uint32()},
			}}
		},
		func() plan.Op { return plan.Settle{Null: g.fd(), NoPivot: g.flip(), Hide: g.flip()} },
		func() plan.Op { return plan.Show{} },
		func() plan.Op { return plan.AllCPUs{} },
		func() plan.Op {
			return plan.Rebind{Tree: &plan.Tree{Path: g.text(), Recursive: g.flip(), Propagation: g.flags()}, Target: g.text(), Flags: g.flags()}
		},
	}
	return all[g.IntN(len(all))]()
}
