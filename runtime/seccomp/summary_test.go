package seccomp

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestSummarize(t *testing.T) {
	if thisHost.native == nil {
		t.Fatal("there is no table of system calls for this machine")
	}
	own := thisHost.native.name
	allow := func(args []specs.LinuxSeccompArg, names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: specs.ActAllow, Args: args}
	}
	zero := []specs.LinuxSeccompArg{{Index: 0, Value: 0, Op: specs.OpEqualTo}}
	for name, c := range map[string]struct {
		profile                      specs.LinuxSeccomp
		allowed, conditional, denied int // below zero: how many are left over
	}{
		"some": {
			specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{allow(nil, "read", "write", "close")}},
			3, 0,
			-1,
		},
		"by arguments": {specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
			allow(nil, "read"), allow(zero, "personality", "clone"),
		}}, 1, 2, -1},
		"all but one": {specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"ptrace"}, Action: specs.ActErrno},
		}}, -1, 0, 1},
		"logged": {specs.LinuxSeccomp{DefaultAction: specs.ActLog}, -1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Compile(&c.profile)
			if err != nil {
				t.Fatal(err)
			}
			all, err := Summarize(f.Insns, nil)
			if err != nil || len(all) != 1 || all[0].Arch != own {
				t.Fatalf("got %+v, %v, want %s alone", all, err, own)
			}
			s := all[0]
			for _, n := range []struct {
				what      string
				got, want int
			}{{"allowed", s.Allowed, c.allowed}, {"conditional", s.Conditional, c.conditional}, {"denied", s.Denied, c.denied}} {
				if n.want >= 0 && n.got != n.want || n.want < 0 && n.got < 200 {
					t.Errorf("%s: %d, want %d in %+v", n.what, n.got, n.want, s)
				}
			}
		})
	}
}

// TestSummaryIsAsExecuted executes the default profile's program with many calls, and looks
// whether the ways found through it are those that are taken.
func TestSummaryIsAsExecuted(t *testing.T) {
	profile := defaultProfile(t, "CAP_CHOWN")
	f, err := Compile(profile)
	if err != nil {
		t.Fatal(err)
	}
	both := map[uint32]bool{}
	newSamples(profile, 1).each(thisHost.native.audit, 50, func(d data) bool {
		action, _, err := run(f.Insns, d)
		if err != nil {
			t.Fatal(err)
		}
		w := walk{program: f.Insns, arch: d.arch, nr: d.nr, seen: map[state]bool{}}
		w.from(state{})
		if permits(action) && !w.made || !permits(action) && !w.refused {
			t.Errorf("call %d gets %#x, but was found to be made: %v, refused: %v", d.nr, action, w.made, w.refused)
		}
		if w.made && w.refused {
			both[d.nr] = true
		}
		return !t.Failed()
	})
	if len(both) == 0 {
		t.Error("no call depends on its arguments, the test sees nothing")
	}
	all, err := Summarize(f.Insns, profile.Architectures)
	if err != nil || len(all) < 2 || all[0].Allowed < 200 || all[0].Denied < 20 {
		t.Errorf("got %+v, %v", all, err)
	}
	t.Logf("%+v", all)
}
