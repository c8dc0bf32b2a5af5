package integration

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// attacker is a container that runs integration/payload/attack.c.
func attacker(t testing.TB, name string, args ...string) *cri.ContainerConfig {
	c := shell(name, "")
	c.Command = append([]string{"/attack"}, args...)
	c.Mounts = []*cri.Mount{{ContainerPath: "/attack", HostPath: testkit.Bin(t, "test", "attack"), Readonly: true}}
	c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	return c
}

// attacks runs an attacker and returns how each of its attacks ended: "ok", or the name of an
// error.
func (p *pod) attacks(conf *cri.ContainerConfig) map[string]string {
	t := p.n.t
	t.Helper()
	c := p.run(conf)
	c.wait()
	results := map[string]string{}
	done := false
	for line := range strings.Lines(c.output("")) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), " ")
		results[name] = result
		done = name == "done"
	}
	delete(results, "done")
	if !done || len(results) == 0 {
		t.Fatalf("%s has not made its attacks:\n%s", conf.Metadata.Name, c.output(""))
	}
	c.remove()
	return results
}

// won are the attacks that had success.
func won(results map[string]string) map[string]bool {
	all := map[string]bool{}
	for name, result := range results {
		if result == "ok" {
			all[name] = true
		}
	}
	return all
}

// The containers of a pod with a shared PID namespace attack its init. Each attack succeeds on
// another process of the same container. Holders of CAP_SYS_PTRACE can trace the init, and have it
// make none but its own system calls.
func TestAttackPodInit(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		testkit.Untested(t, "attacks on a pod's init: they put system calls into it, which integration/payload/attack.c can on amd64 only")
		return
	}
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	for name, users := range map[string]*cri.UserNamespace{"host's users": nil, "user namespace": userNamespace()} {
		t.Run(name, func(t *testing.T) { n.t = t; attackPodInit(t, n, users) })
	}
}

func attackPodInit(t *testing.T, n *node, users *cri.UserNamespace) {
	shared := &cri.NamespaceOption{Pid: cri.NamespaceMode_POD, UsernsOptions: users}
	p := n.runPod(func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions = shared })
	defer p.remove()
	probe := shell("probe", "grep -E '^(Uid|Seccomp|NoNewPrivs|CapBnd):' /proc/1/status; echo ready; "+forever)
	probe.Linux.SecurityContext.NamespaceOptions = shared
	c := p.run(probe)
	eventually(t, "the container has looked at the init", func() bool { return strings.Contains(c.output(""), "ready") })
	var uid int64
	if _, err := fmt.Sscanf(c.output(""), "Uid: %d", &uid); err != nil {
		t.Fatalf("%v in %q", err, c.output(""))
	}
	for _, want := range []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapBnd:\t0000000000000000\n"} {
		if !strings.Contains(c.output(""), want) {
			t.Errorf("no %q in\n%s", want, c.output(""))
		}
	}
	// What a process may do to any other that it sees.
	always := map[string]bool{"signal": true}
	restricted := func(uid int64) func(*cri.LinuxContainerSecurityContext) {
		return func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: uid}, &cri.Int64Value{Value: uid}
			s.NoNewPrivs = true
			s.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}}
		}
	}
	for name, tc := range map[string]struct {
		change func(*cri.LinuxContainerSecurityContext)
		takes  bool // the init's user, with CAP_SETUID
		traces bool // may trace init
		open   bool // without a filter of its own
	}{
		"uid 65535":      {change: restricted(65535)},
		"the init's uid": {takes: true},
		"root":           {},
		"root with CAP_SYS_PTRACE": {traces: true, change: func(s *cri.LinuxContainerSecurityContext) {
			s.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_PTRACE"}}
		}},
		"root with CAP_SYS_PTRACE, unconfined": {traces: true, open: true, change: func(s *cri.LinuxContainerSecurityContext) {
			s.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_PTRACE"}}
			s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
		}},
	} {
		attack := func(what, target string) map[string]string {
			conf := attacker(t, strings.Map(onlyLetters, name+what), "process", target)
			if tc.takes {
				conf.Command = append(conf.Command, fmt.Sprint(uid))
			}
			conf.Linux.SecurityContext.NamespaceOptions = shared
			if tc.change != nil {
				tc.change(conf.Linux.SecurityContext)
			}
			return p.attacks(conf)
		}
		plain := attack("plain", "self")
		for what, result := range plain {
			switch {
			case what == "inject-unshare", what == "pidfd_getfd" && !tc.open: // for the default filter
			case result == "EFAULT" && strings.HasPrefix(what, "inject-"): // was made, with a pointer of 0
			case result != "ok":
				t.Errorf("%s: %s has no success on a plain process: %s", name, what, result)
			}
		}
		if got := plain["inject-unshare"] == "ok"; got != tc.open {
			t.Errorf("%s: a plain process made to unshare(CLONE_NEWUSER): %s", name, plain["inject-unshare"])
		}
		onInit := attack("init", "1")
		switch {
		case !tc.traces:
			wins := won(onInit)
			maps.DeleteFunc(wins, func(name string, _ bool) bool { return always[name] })
			if len(wins) > 0 {
				t.Errorf("%s: success on init with %v", name, wins)
			}
		case onInit["ptrace"] != "ok":
			t.Errorf("%s: cannot trace init (%s), so the filter was not tested", name, onInit["ptrace"])
		default:
			for attack, result := range onInit {
				if strings.HasPrefix(attack, "inject-") && result != "EPERM" {
					t.Errorf("%s: init traced, %s: %s", name, attack, result)
				}
			}
		}
	}
	// None of the signals ended it, and its root shows the pod's processes at most.
	if got := c.status().GetState(); got != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v after the attacks", got)
	}
	conf := shell("root", "ls /proc/1/root/ /proc/1/root/proc | grep -v '^[0-9]*$'")
	conf.Linux.SecurityContext.NamespaceOptions = shared
	conf.Linux.SecurityContext.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_PTRACE"}}
	look := p.run(conf)
	look.wait()
	if got, want := strings.Fields(look.output("stdout")),
		"/proc/1/root/: coracle-pod-init dev proc /proc/1/root/proc: self thread-self"; strings.Join(got, " ") != want {
		t.Errorf("init's root shows %q", got)
	}
}

// The init's cgroup limits its memory and processes.
func TestPodInitLimits(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
	})
	conf := shell("main", forever)
	conf.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
	p.run(conf)
	limit := func(controller, file, unified string) string {
		for _, path := range []string{"/sys/fs/cgroup/" + controller + n.Cgroup + "/" + p.id + "/" + file, "/sys/fs/cgroup" + n.Cgroup + "/" +
			p.id + "/" + unified} {
			if b, err := os.ReadFile(path); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
		t.Fatalf("no limit of %s for %s in %s", controller, p.id, n.Cgroup)
		return ""
	}
	if got := limit("memory", "memory.limit_in_bytes", "memory.max"); got != fmt.Sprint(32<<20) {
		t.Errorf("memory %s", got)
	}
	if got := limit("pids", "pids.max", "pids.max"); got != "64" {
		t.Errorf("processes %s", got)
	}
	p.remove()
}

// onlyLetters keeps what a container's name may have.
func onlyLetters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return -1
}
