package seccomp

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestCacheCompilesEqualProfilesOnce(t *testing.T) {
	var c Cache
	var wg sync.WaitGroup
	filters := make([]*Filter, 16)
	for i := range filters {
		wg.Go(func() {
			f, err := c.Compile(defaultProfile(t)) // a copy of its own for each
			if err != nil {
				t.Error(err)
			}
			filters[i] = f
		})
	}
	wg.Wait()
	for _, f := range filters {
		if f != filters[0] {
			t.Fatal("equal profiles were compiled more than once")
		}
	}
	want, err := Compile(defaultProfile(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(filters[0].Insns, want.Insns) {
		t.Error("the cached program is another one")
	}
}

// TestCacheTellsProfilesApart changes all that a profile has, one at a time.
func TestCacheTellsProfilesApart(t *testing.T) {
	base := func() *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{
			DefaultAction: specs.ActErrno, ListenerPath: "/a",
			Architectures: []specs.Arch{specs.ArchX86},
			Syscalls: []specs.LinuxSyscall{{
				Names: []string{"read"}, Action: specs.ActAllow,
				Args: []specs.LinuxSeccompArg{{Index: 1, Value: 2, ValueTwo: 3, Op: specs.OpEqualTo}},
			}},
		}
	}
	seen := map[[32]byte]string{digest(nil): "nil"}
	for name, change := range map[string]func(*specs.LinuxSeccomp){
		"base":              func(*specs.LinuxSeccomp) {},
		"default action":    func(p *specs.LinuxSeccomp) { p.DefaultAction = specs.ActTrap },
		"default errno":     func(p *specs.LinuxSeccomp) { p.DefaultErrnoRet = new(uint(1)) },
		"default errno 0":   func(p *specs.LinuxSeccomp) { p.DefaultErrnoRet = new(uint(0)) },
		"architecture":      func(p *specs.LinuxSeccomp) { p.Architectures[0] = specs.ArchX32 },
		"no architecture":   func(p *specs.LinuxSeccomp) { p.Architectures = nil },
		"empty flags":       func(p *specs.LinuxSeccomp) { p.Flags = []specs.LinuxSeccompFlag{} },
		"flag":              func(p *specs.LinuxSeccomp) { p.Flags = []specs.LinuxSeccompFlag{flagTSYNC} },
		"listener":          func(p *specs.LinuxSeccomp) { p.ListenerPath = "/b" },
		"listener metadata": func(p *specs.LinuxSeccomp) { p.ListenerMetadata = "m" },
		"names":             func(p *specs.LinuxSeccomp) { p.Syscalls[0].Names = []string{"re", "ad"} },
		"action":            func(p *specs.LinuxSeccomp) { p.Syscalls[0].Action = specs.ActLog },
		"errno":             func(p *specs.LinuxSeccomp) { p.Syscalls[0].ErrnoRet = new(uint(2)) },
		"index":             func(p *specs.LinuxSeccomp) { p.Syscalls[0].Args[0].Index = 2 },
		"value":             func(p *specs.LinuxSeccomp) { p.Syscalls[0].Args[0].Value = 3 },
		"value two":         func(p *specs.LinuxSeccomp) { p.Syscalls[0].Args[0].ValueTwo = 2 },
		"operator":          func(p *specs.LinuxSeccomp) { p.Syscalls[0].Args[0].Op = specs.OpNotEqual },
		"no rule":           func(p *specs.LinuxSeccomp) { p.Syscalls = nil },
		"rule twice":        func(p *specs.LinuxSeccomp) { p.Syscalls = append(p.Syscalls, p.Syscalls[0]) },
	} {
		p := base()
		change(p)
		d := digest(p)
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[d] = name
	}
}

func TestCacheIsBounded(t *testing.T) {
	var c Cache
	first := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, ListenerMetadata: "first"}
	want, err := c.Compile(first)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * cacheSize {
		if _, err := c.Compile(&specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: new(uint(i))}); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Compile(first); err != nil || got != want {
			t.Fatalf("the profile used last was forgotten after %d others (%v)", i, err)
		}
	}
	if len(c.byKey) != cacheSize || c.used.Len() != cacheSize {
		t.Errorf("%d and %d entries, want %d", len(c.byKey), c.used.Len(), cacheSize)
	}
}

func TestCacheForgetsErrors(t *testing.T) {
	var c Cache
	for range 2 {
		if _, err := c.Compile(&specs.LinuxSeccomp{DefaultAction: "no"}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
	if len(c.byKey) != 0 || c.used.Len() != 0 {
		t.Errorf("%d and %d entries", len(c.byKey), c.used.Len())
	}
}
