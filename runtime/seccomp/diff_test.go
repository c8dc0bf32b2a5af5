//go:build cgo && seccomp

package seccomp

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

func TestDefaultProfileIsAsRunc(t *testing.T) {
	for name, caps := range map[string][]string{
		"no capabilities": nil,
		"docker's":        {"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_NET_RAW", "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_MKNOD"},
		"administrator": {
			"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_MODULE", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_RAWIO", "CAP_SYS_TIME",
			"CAP_SYS_TTY_CONFIG", "CAP_SYS_NICE", "CAP_SYSLOG", "CAP_DAC_READ_SEARCH",
		},
	} {
		t.Run(name, func(t *testing.T) {
			check{every: true, samples: 2000}.mustPass(t, defaultProfile(t, caps...))
		})
	}
}

// foreignAudit are architectures that no profile of the tests names.
var foreignAudit = []uint32{unix.AUDIT_ARCH_S390X, 0, ^uint32(0)}

// all adds every number that is a call, and ARM's private ones.
func (s *samples) all() *samples {
	for _, r := range [][2]uint32{{0, 600}, {0xf0000, 0xf0010}} {
		for nr := r[0]; nr < r[1]; nr++ {
			s.addNumber(nr)
		}
	}
	return s
}

// check compares programs of a profile with its meaning and with runc's program.
type check struct {
	samples int  // of each call whose arguments are compared
	every   bool // number there is
	// lenient leaves out what is doubtful of runc's.
	lenient bool
}

// mustPass fails the test with the smallest profile that still is decided differently.
func (c check) mustPass(t testing.TB, p *specs.LinuxSeccomp) {
	t.Helper()
	if err := c.difference(t, p); err != nil {
		p = minimise(p, func(q *specs.LinuxSeccomp) bool { return c.difference(t, q) != nil })
		t.Fatal(c.difference(t, p))
	}
}

// difference is a call that our program decides otherwise than the profile says, or runc's
// than ours, on any architecture.
func (c check) difference(t testing.TB, profile *specs.LinuxSeccomp) error {
	t.Helper()
	profile = knownToLibrary(t, profile)
	for _, name := range []string{"amd64", "arm64"} {
		on, p := hosts[name], *profile
		if name == "arm64" {
			// To libseccomp on another machine it is an additional architecture.
			p.Architectures = append(slices.Clone(p.Architectures), specs.ArchAARCH64, specs.ArchARM)
		}
		f, err := compile(&p, on)
		if err != nil && c.lenient && severalRanges(&p) {
			return nil // libseccomp 2.5.4 does not always return from some of these
		}
		theirs, refused := reference(&p)
		if err != nil && refused != nil {
			return nil
		} else if err != nil || refused != nil && !(c.lenient && severalRanges(&p)) {
			doc, _ := json.Marshal(p)
			return fmt.Errorf("%s: we say %v, runc %v\n%.4000s", name, err, refused, doc)
		}
		if err := valid(f.Insns); err != nil {
			return err
		}
		audits := slices.Clone(foreignAudit)
		for _, a := range append([]*arch{on.native}, on.also...) {
			audits = append(audits, a.audit)
		}
		s, m := newSamples(&p, uint64(len(p.Syscalls))), newMeaning(t, &p, on)
		if c.every {
			s.all()
		}
		for _, audit := range slices.Compact(audits) {
			s.each(audit, c.samples, func(d data) bool {
				says, ours := m.of(d), mustRun(t, f.Insns, d)
				runcs := ours
				if refused == nil {
					runcs = mustRun(t, theirs, d)
				}
				if ours != says || ours != runcs && !(c.lenient && doubtful(m, d)) {
					doc, _ := json.Marshal(p)
					err = fmt.Errorf("%s: call %#x of arch %#x with %#x: ours %#x, runc's %#x, profile says %#x\n%.4000s", name, d.nr, d.arch, d.args,
						ours, runcs, says, doc)
				}
				return err == nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// TestProfilesAreAsRunc has what is rare in random profiles, and holds without exception.
func TestProfilesAreAsRunc(t *testing.T) {
	logrus.SetLevel(logrus.ErrorLevel) // runc warns of profiles without calls for an architecture
	const all = `"architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]`
	for name, doc := range map[string]string{
		"nothing but a default":    `{"defaultAction": "SCMP_ACT_ERRNO"}`,
		"only the call numbered 0": `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}`,
		"only unknown calls":       `{"defaultAction": "SCMP_ACT_KILL", "syscalls": [{"names": ["readd", "Read"], "action": "SCMP_ACT_ALLOW"}]}`,
		"only calls of i386": `{"defaultAction": "SCMP_ACT_KILL_PROCESS", ` + all +
			`, "syscalls": [{"names": ["waitpid", "stat64", "ugetrlimit", "socketcall"], "action": "SCMP_ACT_ALLOW"}]}`,
		"the default ENOSYS": `{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, ` + all +
			`, "syscalls": [{"names": ["getpid", "socket"], "action": "SCMP_ACT_ALLOW"}]}`,
		"a list of what is denied": `{"defaultAction": "SCMP_ACT_ALLOW", ` + all +
			`, "syscalls": [{"names": ["acct", "bpf", "kexec_load", "mount", "shmget", "bind"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}, {"names": ["ptrace"], "action": "SCMP_ACT_KILL"}]}`,
		"the first without args": `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["dup"], "action": "SCMP_ACT_TRAP", "args": [{"op": "SCMP_CMP_EQ", "value": 1}]}, {"names": ["dup"], "action": "SCMP_ACT_ALLOW"}, {"names": ["dup"], "action": "SCMP_ACT_LOG"}]}`,
		"alternatives of one argument": `{"defaultAction": "SCMP_ACT_ERRNO", ` + all +
			`, "syscalls": [{"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [{"op": "SCMP_CMP_EQ", "value": 17}, {"op": "SCMP_CMP_MASKED_EQ", "value": 2114060288}, {"index": 1, "op": "SCMP_CMP_EQ", "value": 5}]}]}`,
		"a mask of nothing": `{"defaultAction": "SCMP_ACT_ERRNO", ` + all +
			`, "syscalls": [{"names": ["dup"], "action": "SCMP_ACT_ALLOW", "args": [{"op": "SCMP_CMP_MASKED_EQ", "valueTwo": 7}]}]}`,
		"a mask of the upper half": `{"defaultAction": "SCMP_ACT_ERRNO", ` + all +
			`, "syscalls": [{"names": ["lseek"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1, "op": "SCMP_CMP_MASKED_EQ", "value": 18446744069414584320, "valueTwo": 8589934592}]}]}`,
		"an upper half on i386": `{"defaultAction": "SCMP_ACT_ERRNO", ` + all +
			`, "syscalls": [{"names": ["lseek"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1, "op": "SCMP_CMP_GE", "value": 8589934597}]}]}`,
		"upper and lower bounds on i386": `{"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86"], "syscalls": [
			{"names": ["waitpid"], "action": "SCMP_ACT_TRAP", "args": [{"op": "SCMP_CMP_GE", "value": 3}]},
			{"names": ["waitpid"], "action": "SCMP_ACT_LOG", "args": [{"op": "SCMP_CMP_GT", "value": 5}]},
			{"names": ["waitpid"], "action": "SCMP_ACT_ALLOW", "args": [{"op": "SCMP_CMP_LE", "value": 9}]},
			{"names": ["waitpid"], "action": "SCMP_ACT_KILL", "args": [{"op": "SCMP_CMP_LT", "value": 2}]},
			{"names": ["waitpid"], "action": "SCMP_ACT_KILL_PROCESS", "args": [{"op": "SCMP_CMP_EQ", "value": 4}]},
			{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}`,
		"the later argument first": `{"defaultAction": "SCMP_ACT_ERRNO", ` + all + `, "syscalls": [
			{"names": ["dup2"], "action": "SCMP_ACT_TRAP", "args": [{"index": 0, "op": "SCMP_CMP_EQ", "value": 3}]},
			{"names": ["dup2"], "action": "SCMP_ACT_LOG", "args": [{"index": 1, "op": "SCMP_CMP_EQ", "value": 3}]},
			{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}`,
		"notify and trace": `{"defaultAction": "SCMP_ACT_TRACE", "defaultErrnoRet": 7, "listenerPath": "/a", ` + all +
			`, "syscalls": [{"names": ["mknod"], "action": "SCMP_ACT_NOTIFY"}, {"names": ["dup"], "action": "SCMP_ACT_TRACE", "errnoRet": 8}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			check{every: true, samples: 1000}.mustPass(t, decoded(t, doc))
		})
	}
}

func TestRandomProfilesAreAsRunc(t *testing.T) {
	logrus.SetLevel(logrus.ErrorLevel)
	for name, g := range map[string]generator{
		"no arguments":  {args: 0, mixed: true},
		"one argument":  {args: 1},
		"mixed actions": {args: 1, mixed: true},
		"arguments":     {args: 4},
		"all":           {args: 4, mixed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(25) {
				g.Rand = rand.New(rand.NewPCG(seed, 2))
				check{samples: 100, lenient: true}.mustPass(t, g.profile())
			}
		})
	}
}

// severalRanges tells profiles that libseccomp refuses because two rules with different
// actions meet at the upper half of an argument, although they are different conditions.
func severalRanges(p *specs.LinuxSeccomp) bool {
	return slices.ContainsFunc(p.Syscalls, func(s specs.LinuxSyscall) bool {
		return len(s.Args) > 1 && slices.ContainsFunc(s.Args, isRange)
	})
}

func isRange(a specs.LinuxSeccompArg) bool {
	return a.Op != specs.OpEqualTo && a.Op != specs.OpMaskedEqual
}

// doubtful are calls for which libseccomp 2.5 may decide otherwise than the profile says.
func doubtful(m *meaning, d data) bool {
	a := m.arch(d)
	if a == nil {
		return false
	}
	plain := m.byArch[a]
	// Without a search tree, and but for x86-64 alone, the number is loaded for the first
	// call: not at all if that is one that the architecture has not.
	if plain.named <= 32 && plain.foreign && (a != archX8664 || m.byArch[archX32] != nil) {
		return true
	}
	// When a rule fails at one word, the next may be tested with that word instead of its own.
	n, ranges, masks, indices := 0, false, false, map[uint]bool{}
	// Below a bound and not below it are one test to it, with the actions of both rules, and a rule
	// between them is not reached.
	shared, bounds := false, map[bound]specs.LinuxSeccompOperator{}
	for _, r := range plain.rules[d.nr] {
		if len(r.args) > 0 {
			n++
		}
		for _, c := range r.args {
			indices[c.Index] = true
			ranges = ranges || isRange(c)
			masks = masks || c.Op == specs.OpMaskedEqual
			if isRange(c) {
				b := bound{c.Index, uint32(c.Value), c.Op == specs.OpGreaterThan || c.Op == specs.OpLessEqual}
				shared = shared || bounds[b] != "" && bounds[b] != c.Op
				bounds[b] = c.Op
			}
		}
	}
	return n > 1 && (ranges && (a.wide || len(indices) > 1 || shared) || masks && len(indices) > 1)
}

// bound is where a range begins or ends: at a value, or after it.
type bound struct {
	index uint
	value uint32
	after bool
}

// maskBeforeArgument is a profile that fuzzing has found.
const maskBeforeArgument = `{"defaultAction": "SCMP_ACT_TRACE", "architectures": ["SCMP_ARCH_X86"], "listenerPath": "/agent", "syscalls": [
	{"names": ["semctl"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 1, "value": 9223372036854775809, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ"}]},
	{"names": ["futex_time64"], "action": "SCMP_ACT_KILL"}, {"names": ["renameat"], "action": "SCMP_ACT_ERRNO"},
	{"names": ["semop"], "action": "SCMP_ACT_ALLOW"}, {"names": ["read"], "action": "SCMP_ACT_LOG"},
	{"names": ["mincore"], "action": "SCMP_ACT_ALLOW"},
	{"names": ["ftruncate64"], "action": "SCMP_ACT_NOTIFY", "errnoRet": 4094},
	{"names": ["modify_ldt"], "action": "SCMP_ACT_TRACE"}, {"names": ["msgget"], "action": "SCMP_ACT_ERRNO"},
	{"names": ["profil"], "action": "SCMP_ACT_ALLOW", "errnoRet": 38}, {"names": ["renameat2"], "action": "SCMP_ACT_TRAP"},
	{"names": ["clone"], "action": "SCMP_ACT_NOTIFY", "errnoRet": 1}, {"names": ["statx"], "action": "SCMP_ACT_TRAP"},
	{"names": ["rt_sigtimedwait"], "action": "SCMP_ACT_ALLOW", "errnoRet": 1}, {"names": ["waitpid"], "action": "SCMP_ACT_LOG"},
	{"names": ["lchown32"], "action": "SCMP_ACT_NOTIFY"}, {"names": ["connect"], "action": "SCMP_ACT_ALLOW"},
	{"names": ["clock_settime64"], "action": "SCMP_ACT_KILL"}, {"names": ["timer_delete"], "action": "SCMP_ACT_ERRNO"},
	{"names": ["personality"], "action": "SCMP_ACT_LOG"}, {"names": ["getppid"], "action": "SCMP_ACT_LOG"},
	{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "errnoRet": 4094}, {"names": ["recv"], "action": "SCMP_ACT_TRAP"},
	{"names": ["io_setup"], "action": "SCMP_ACT_TRACE", "errnoRet": 4094}, {"names": ["openat2"], "action": "SCMP_ACT_ERRNO"},
	{"names": ["io_setup"], "action": "SCMP_ACT_TRACE", "errnoRet": 38},
	{"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1, "value": 4294967295, "valueTwo": 1, "op": "SCMP_CMP_GT"}]},
	{"names": ["recv"], "action": "SCMP_ACT_KILL_THREAD", "args": [{"index": 2, "value": 3, "valueTwo": 4294967297, "op": "SCMP_CMP_LT"}]},
	{"names": ["fdatasync"], "action": "SCMP_ACT_ALLOW", "errnoRet": 38}, {"names": ["msgrcv"], "action": "SCMP_ACT_KILL"},
	{"names": ["readdir"], "action": "SCMP_ACT_TRAP"}, {"names": ["openat2"], "action": "SCMP_ACT_TRAP", "errnoRet": 13},
	{"names": ["read"], "action": "SCMP_ACT_TRAP"}
]}`

// libseccomp 2.5 tests the word of the rule before, masked, against the value of the next: here the
// second argument of semctl against the number of semop among the calls of ipc(2). Whether it does
// depends on the whole profile, which fuzzing has found. We do as the profile says.
func TestMaskBeforeAnotherArgument(t *testing.T) {
	p := decoded(t, maskBeforeArgument)
	d := data{nr: 0x75, arch: unix.AUDIT_ARCH_I386, args: [6]uint64{3, 1}}
	m := newMeaning(t, p, hosts["amd64"])
	f, err := compile(p, hosts["amd64"])
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := reference(p)
	if err != nil {
		t.Fatal(err)
	}
	says, ours, runcs := m.of(d), mustRun(t, f.Insns, d), mustRun(t, theirs, d)
	if ours != says || runcs == says || !doubtful(m, d) {
		t.Errorf("the profile says %#x, we %#x, runc %#x, which is expected: %t", says, ours, runcs, doubtful(m, d))
	}
}

// FuzzRandomProfiles looks for differences for as long as it may. An input that hangs is one
// for which libseccomp does: the stack says so.
func FuzzRandomProfiles(f *testing.F) {
	logrus.SetLevel(logrus.ErrorLevel)
	f.Add(uint64(1), uint64(2), uint8(1), true)
	f.Fuzz(func(t *testing.T, seed1, seed2 uint64, args uint8, mixed bool) {
		g := generator{Rand: rand.New(rand.NewPCG(seed1, seed2)), args: int(args % 6), mixed: mixed}
		check{samples: 50, lenient: true}.mustPass(t, g.profile())
	})
}
