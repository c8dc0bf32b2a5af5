package seccomp

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestBadProfilesAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ profile, want string }{
		"unknown default action": {`{"defaultAction": "SCMP_ACT_DENY"}`, `default action: "SCMP_ACT_DENY" is not an action`},
		"no default action":      {`{"syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}`, `default action: "" is not an action`},
		"notify by default":      {`{"defaultAction": "SCMP_ACT_NOTIFY"}`, `default action: SCMP_ACT_NOTIFY is for single system calls`},
		"unknown action":         {profileOf(`{"names": ["read"], "action": "ALLOW"}`), `syscalls[0]: "ALLOW" is not an action`},
		"unknown architecture": {
			`{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86", "amd64"]}`,
			`architectures[1]: "amd64" is not an architecture`,
		},
		"other byte order": {
			`{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_S390X"]}`,
			`architectures[0]: SCMP_ARCH_S390X is big-endian`,
		},
		"unknown flag": {`{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["LOG"]}`, `flags[0]: "LOG" is not a flag`},
		"wait without notify": {
			`{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]}`,
			`needs a rule with SCMP_ACT_NOTIFY`,
		},
		"unknown operator": {
			profileOf(`{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"op": "=="}]}`),
			`syscalls[0]: args[0]: "==" is not an operator`,
		},
		"argument 6": {
			profileOf(`{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"op": "SCMP_CMP_EQ", "index": 6}]}`),
			`args[0]: index 6`,
		},
		"argument beyond all numbers": {
			profileOf(`{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"op": "SCMP_CMP_EQ", "index": 18446744073709551615}]}`),
			`args[0]: index`,
		},
		"empty name": {profileOf(`{"names": ["read", ""], "action": "SCMP_ACT_ALLOW"}`), `syscalls[0]: names[1] is empty`},
		"errno too great": {
			profileOf(`{"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 4095}`),
			`errnoRet 4095 is no errno`,
		},
		"default errno too great": {`{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 65536}`, `default action: errnoRet 65536`},
		"trace data too great": {
			profileOf(`{"names": ["read"], "action": "SCMP_ACT_TRACE", "errnoRet": 65536}`),
			`errnoRet 65536 for a tracer`,
		},
		"notify without agent": {profileOf(`{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}`), `set listenerPath`},
		"notify for write":     {profileOf(`{"names": ["write"], "action": "SCMP_ACT_NOTIFY"}`), `SCMP_ACT_NOTIFY for write`},
		"contradiction": {
			profileOf(`{"names": ["dup"], "action": "SCMP_ACT_ALLOW", "args": [{"op": "SCMP_CMP_EQ", "value": 1}]},
				{"names": ["dup"], "action": "SCMP_ACT_TRAP", "args": [{"op": "SCMP_CMP_EQ", "value": 1}]}`),
			`rules for dup on `,
		},
		"shorter rule after a longer one": {
			profileOf(`{"names": ["dup3"], "action": "SCMP_ACT_ALLOW", "args": [{"op": "SCMP_CMP_EQ", "value": 1}, {"index": 1, "op": "SCMP_CMP_EQ"}]},
				{"names": ["dup3"], "action": "SCMP_ACT_TRAP", "args": [{"op": "SCMP_CMP_EQ", "value": 1}]}`),
			`two with different actions`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Compile(decoded(t, c.profile))
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want ErrInvalid with %q", err, c.want)
			}
			if f != nil {
				t.Error("a filter and an error")
			}
		})
	}
}

// profileOf is a profile with the rules.
func profileOf(list string) string {
	return `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [` + list + `]}`
}

func decoded(t testing.TB, doc string) *specs.LinuxSeccomp {
	t.Helper()
	var p specs.LinuxSeccomp
	if err := json.Unmarshal([]byte(doc), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

func TestTooLongProfilesAreRefused(t *testing.T) {
	many := func(n int, call string, values ...uint64) *specs.LinuxSeccomp {
		p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
		for i := range uint64(n) {
			s := specs.LinuxSyscall{Names: []string{call}, Action: specs.ActAllow}
			for j, v := range values {
				s.Args = append(s.Args, specs.LinuxSeccompArg{Index: uint(j), Op: specs.OpGreaterThan, Value: v * (i + 1)})
			}
			p.Syscalls = append(p.Syscalls, s)
		}
		return p
	}
	if _, err := Compile(many(5000, "dup3", 1)); !errors.Is(err, ErrInvalid) {
		t.Errorf("5000 rules for one argument: %v", err)
	}
	if _, err := Compile(many(maxConditions+1, "dup3", 0)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "rules with args") {
		t.Errorf("more rules than bearable: %v", err)
	}
	if _, err := Compile(many(2000, "dup3", 1, 1<<33, 3)); !errors.Is(err, ErrInvalid) {
		t.Errorf("2000 rules for three arguments: %v", err)
	}
	// 300 need long jumps, and are well within the limit.
	f, err := Compile(many(300, "dup3", 1<<33))
	if err != nil {
		t.Fatal(err)
	}
	if err := valid(f.Insns); err != nil {
		t.Error(err)
	}
	if len(f.Insns) < 500 {
		t.Errorf("only %d instructions", len(f.Insns))
	}
	for arg, want := range map[uint64]uint32{1 << 33: unix.SECCOMP_RET_ERRNO | 1, 1<<33 + 1: unix.SECCOMP_RET_ALLOW} {
		d := data{nr: unix.SYS_DUP3, arch: thisHost.native.audit}
		d.args[0] = arg
		if got := mustRun(t, f.Insns, d); got != want {
			t.Errorf("argument %#x: %#x, want %#x", arg, got, want)
		}
	}
	// One rule says as much as the same one ten thousand times.
	if f, err := Compile(many(10_000, "dup3", 0)); err != nil || len(f.Insns) > 20 {
		t.Errorf("one rule repeated: %v", err)
	}
}

func TestEmptyProfileLoadsNothing(t *testing.T) {
	for name, p := range map[string]*specs.LinuxSeccomp{"nil": nil, "empty": {}} {
		if f, err := Compile(p); err != nil || len(f.Insns) > 0 || f.Flags != 0 {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

func TestFlags(t *testing.T) {
	const notify = `"listenerPath": "/a", "listenerMetadata": "m", "syscalls": [{"names": ["getppid"], "action": "SCMP_ACT_NOTIFY"}]`
	for name, c := range map[string]struct {
		fields string
		want   uint32
	}{
		"none given": {`"listenerPath": "/a"`, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW},
		"empty list": {`"flags": []`, 0},
		"all": {
			`"flags": ["SECCOMP_FILTER_FLAG_TSYNC", "SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW"]`,
			unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_LOG | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
		},
		"listener": {`"flags": [], ` + notify, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER},
		"listener, all threads": {
			`"flags": ["SECCOMP_FILTER_FLAG_TSYNC"], ` + notify,
			unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
		},
		"listener, killable": {
			`"flags": ["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"], ` + notify,
			unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Compile(decoded(t, `{"defaultAction": "SCMP_ACT_ALLOW", `+c.fields+`}`))
			if err != nil {
				t.Fatal(err)
			}
			if f.Flags != c.want {
				t.Errorf("flags %#x, want %#x", f.Flags, c.want)
			}
			if listens := c.want&unix.SECCOMP_FILTER_FLAG_NEW_LISTENER != 0; f.Notify != listens {
				t.Errorf("Notify is %t", f.Notify)
			} else if listens && (f.ListenerPath != "/a" || f.ListenerMetadata != "m") {
				t.Errorf("listener %q, %q", f.ListenerPath, f.ListenerMetadata)
			}
		})
	}
}

// TestMultiplexedCallsOfI386 pins what the fewest profiles are tested for elsewhere: a
// prototype of this package let i386 programs around rules for sockets.
func TestMultiplexedCallsOfI386(t *testing.T) {
	p := decoded(t, `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86"], "syscalls": [
		{"names": ["socket"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "op": "SCMP_CMP_EQ", "value": 40}]},
		{"names": ["semctl", "recv"], "action": "SCMP_ACT_TRAP"}]}`)
	f, err := compile(p, hosts["amd64"])
	if err != nil {
		t.Fatal(err)
	}
	const allow, errno, trap = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | 1, unix.SECCOMP_RET_TRAP
	for _, c := range []struct {
		nr   uint32
		arg  uint64
		want uint32
	}{
		{359, 40, errno}, {359, 2, allow}, // socket itself
		{102, 1, errno}, {102, 2, allow}, {102, 40, allow}, // socketcall: socket, bind
		{102, 10, trap}, {117, 3, trap}, {117, 1, allow}, {394, 0, trap}, // recv, semctl twice
	} {
		d := data{nr: c.nr, arch: archX86.audit}
		d.args[0] = c.arg
		if got := mustRun(t, f.Insns, d); got != c.want {
			t.Errorf("call %d(%d): %#x, want %#x", c.nr, c.arg, got, c.want)
		}
	}
}

// FuzzCompile compiles any profile: an error, or a program that the kernel takes.
func FuzzCompile(f *testing.F) {
	f.Add(
		[]byte(
			`{"defaultAction": "SCMP_ACT_TRACE", "defaultErrnoRet": 1, "architectures": ["SCMP_ARCH_X86"], "flags": ["SECCOMP_FILTER_FLAG_LOG"]}`,
		),
	)
	f.Add(
		[]byte(
			`{"defaultAction": "SCMP_ACT_KILL", "listenerPath": "/a", "syscalls": [{"names": ["socket", "dup"], "action": "SCMP_ACT_NOTIFY"}]}`,
		),
	)
	f.Add(
		[]byte(profileOf(`{"names": ["dup"], "action": "SCMP_ACT_TRAP", "args": [{"op": "SCMP_CMP_MASKED_EQ", "value": 6, "valueTwo": 4}]}`)),
	)
	f.Fuzz(func(t *testing.T, doc []byte) {
		var p specs.LinuxSeccomp
		if json.Unmarshal(doc, &p) != nil {
			return
		}
		filter, err := Compile(&p)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || filter != nil {
				t.Errorf("%v, %v", filter, err)
			}
			return
		}
		if len(filter.Insns) == 0 {
			if p.DefaultAction != "" || len(p.Syscalls) > 0 {
				t.Error("an empty program")
			}
			return
		}
		if err := valid(filter.Insns); err != nil {
			t.Error(err)
		}
	})
}

// FuzzMeaning compares programs with what their profiles say, on both machines.
func FuzzMeaning(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint8(4), true)
	f.Fuzz(func(t *testing.T, seed1, seed2 uint64, args uint8, mixed bool) {
		g := newGenerator(seed1, seed2)
		g.args, g.mixed = int(args%7), mixed
		p := g.profile()
		for name, on := range hosts {
			filter, err := compile(p, on)
			if err != nil {
				continue // contradictory: the generator does not mind
			}
			if err := valid(filter.Insns); err != nil {
				t.Fatal(err)
			}
			m, s := newMeaning(t, p, on), newSamples(p, seed1)
			for _, a := range append([]*arch{on.native}, on.also...) {
				s.each(a.audit, 30, func(d data) bool {
					got, want := mustRun(t, filter.Insns, d), m.of(d)
					if got != want {
						doc, _ := json.Marshal(p)
						t.Errorf("%s: call %#x of arch %#x with %#x: %#x, profile says %#x\n%s", name, d.nr, d.arch, d.args, got, want, doc)
					}
					return got == want
				})
			}
		}
	})
}
