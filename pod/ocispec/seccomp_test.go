package ocispec

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// rule is a condition under which a system call is allowed.
type rule struct {
	arg         uint
	op          specs.LinuxSeccompOperator // "": whatever the arguments
	value, mask uint64
}

func (r rule) holds(args [6]uint64) bool {
	switch a := args[r.arg]; r.op {
	case specs.OpEqualTo:
		return a == r.value
	case specs.OpLessThan:
		return a < r.value
	case specs.OpGreaterThan:
		return a > r.value
	case specs.OpMaskedEqual:
		return a&r.mask == r.value
	}
	return true
}

// allowed are the rules by which system calls are allowed.
type allowed map[string][]rule

func (a allowed) allows(name string, args [6]uint64) bool {
	return slices.ContainsFunc(a[name], func(r rule) bool { return r.holds(args) })
}

// containerds is what containerd allows with some capabilities. The file is what a program found
// out that called DefaultProfile of its contrib/seccomp with no capability, each and all of them,
// for both architectures.
func containerds(t *testing.T, caps []string) allowed {
	t.Helper()
	f, err := os.Open("testdata/containerd-2.4.2-seccomp.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a := allowed{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		line, arch, of := strings.Cut(s.Text(), " on ")
		if strings.HasPrefix(line, "#") || of && arch != runtime.GOARCH {
			continue
		}
		line, without, not := strings.Cut(line, " without ")
		line, with, only := strings.Cut(line, " with ")
		if not && slices.Contains(caps, without) || only && !slices.Contains(caps, with) {
			continue
		}
		name, condition, _ := strings.Cut(line, " ")
		a[name] = append(a[name], parseRule(t, condition))
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	return a
}

func parseRule(t *testing.T, condition string) (r rule) {
	t.Helper()
	scan := func(format string, to ...any) bool {
		_, err := fmt.Sscanf(condition, format, to...)
		return err == nil
	}
	switch {
	case condition == "":
	case scan("arg%d == %v", &r.arg, &r.value):
		r.op = specs.OpEqualTo
	case scan("arg%d < %v", &r.arg, &r.value):
		r.op = specs.OpLessThan
	case scan("arg%d & %v == %v", &r.arg, &r.mask, &r.value):
		r.op = specs.OpMaskedEqual
	default:
		t.Fatalf("condition %q", condition)
	}
	return r
}

// ours is the same of a profile.
func ours(t *testing.T, p *specs.LinuxSeccomp) allowed {
	t.Helper()
	if p.DefaultAction != specs.ActErrno {
		t.Fatalf("default action %s", p.DefaultAction)
	}
	a := allowed{}
	for _, s := range p.Syscalls {
		var r rule
		switch {
		case s.Action == specs.ActErrno:
			continue
		case s.Action != specs.ActAllow || len(s.Args) > 1:
			t.Fatalf("a rule that this test does not know: %+v", s)
		case len(s.Args) == 1:
			r = rule{arg: s.Args[0].Index, op: s.Args[0].Op, value: s.Args[0].Value}
			if r.op == specs.OpMaskedEqual {
				r.mask, r.value = s.Args[0].Value, s.Args[0].ValueTwo
			}
		}
		for _, name := range s.Names {
			a[name] = append(a[name], r)
		}
	}
	return a
}

// samples are values of an argument on both sides of every bound in some rules, with each bit set
// alone, and with bits that the kernel does not look at.
func samples(rules []rule) []uint64 {
	values := []uint64{0, ^uint64(0)}
	for bit := range 64 {
		values = append(values, 1<<bit)
	}
	for _, r := range rules {
		for _, v := range []uint64{r.value, r.mask} {
			values = append(values, v-1, v, v+1, v|1<<32, v|1<<63)
		}
	}
	return values
}

// The default profile allows nothing that containerd's does not, whatever the capabilities.
func TestDefaultSeccompIsNoLooserThanContainerds(t *testing.T) {
	sets := map[string][]string{"none": nil, "the default": DefaultCapabilities(), "all": known}
	for _, c := range known {
		sets[c] = []string{c}
	}
	for which, caps := range sets {
		p, err := defaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}}})
		if err != nil {
			t.Fatal(err)
		}
		we, they := ours(t, p), containerds(t, caps)
		if len(we) < 300 || len(they) < 300 {
			t.Fatalf("%d and %d system calls", len(we), len(they))
		}
		for name := range we {
			if len(they[name]) == 0 {
				t.Errorf("with %s capabilities, %s is allowed", which, name)
				continue
			}
			for _, value := range samples(slices.Concat(we[name], they[name])) {
				for i := range 6 {
					var args [6]uint64
					args[i] = value
					if we.allows(name, args) && !they.allows(name, args) {
						t.Errorf("with %s capabilities, %s is allowed with argument %d %#x", which, name, i, value)
					}
				}
			}
		}
	}
}

// Regression: the filter compared 64 bits of an address family, and the kernel uses 32. Containers
// could open sockets of denied families.
func TestDefaultSeccompKeepsFamilies(t *testing.T) {
	p, err := defaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: known}}})
	if err != nil {
		t.Fatal(err)
	}
	we := ours(t, p)
	for family, want := range map[uint64]bool{
		unix.AF_UNIX: true, unix.AF_INET6: true, unix.AF_NETLINK: true, unix.AF_PACKET: true, unix.AF_CAIF: true, unix.AF_NFC: true,
		unix.AF_MCTP: true, unix.AF_ALG: false, unix.AF_VSOCK: false, 1<<32 | unix.AF_ALG: false, 1<<63 | unix.AF_VSOCK: false,
	} {
		if got := we.allows("socket", [6]uint64{family}); got != want {
			t.Errorf("family %#x is allowed: %t", family, got)
		}
	}
}

// A filter sees nothing of the family in socketcall(2). The rule comes before those for socket,
// which apply to a call within socketcall, too: after them it would contradict them.
func TestDefaultSeccompDeniesSocketcall(t *testing.T) {
	p, err := defaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: known}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range p.Syscalls {
		if slices.Contains(r.Names, "socketcall") != (i == 0) {
			t.Errorf("rule %d: %+v", i, r)
		}
	}
	if r := p.Syscalls[0]; r.Action != specs.ActErrno || r.ErrnoRet == nil || *r.ErrnoRet != uint(unix.ENOSYS) || len(r.Args) > 0 {
		t.Errorf("the rule is %+v", r)
	}
}
