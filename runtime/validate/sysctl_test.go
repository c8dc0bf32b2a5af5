package validate_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/validate"
)

// TestAttackSysctlsThatClimb: names that start like a parameter of the container's namespaces, and
// whose paths are a parameter of the host.
func TestAttackSysctlsThatClimb(t *testing.T) {
	const target = "/proc/sys/kernel/core_pattern"
	host, err := os.Stat(target)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"net.//.kernel.core_pattern", "net/../kernel/core_pattern",
		"net.ipv4.//.//.kernel.core_pattern", "net././/.kernel.core_pattern",
		"fs.mqueue.//.//.kernel.core_pattern", "fs/mqueue/../../kernel/core_pattern",
	} {
		t.Run(name, func(t *testing.T) {
			unprotected := "/proc/sys/" + validate.SysctlPath(name)
			if got, err := os.Stat(unprotected); err != nil || !os.SameFile(got, host) {
				t.Errorf("%s is not %s, so this test proves nothing: %v", unprotected, target, err)
			}
			spec := validSpec()
			spec.Linux.Namespaces = append(spec.Linux.Namespaces,
				specs.LinuxNamespace{Type: specs.IPCNamespace}, specs.LinuxNamespace{Type: specs.NetworkNamespace})
			spec.Linux.Sysctl = map[string]string{name: "|/attack"}
			const says = "is no name of a kernel parameter"
			for what, err := range map[string]error{
				"the configuration": validate.Spec(spec, bundle(t)), "the name": validate.Sysctl(spec.Linux, name),
			} {
				if !errors.Is(err, runtime.ErrInvalidSpec) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: error %v, want ErrInvalidSpec saying %q", what, err, says)
				}
			}
		})
	}
}

func TestSysctlNames(t *testing.T) {
	l := &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.IPCNamespace}, {Type: specs.NetworkNamespace}}}
	for name, allowed := range map[string]bool{
		"net.ipv4.ip_forward":              true,
		"net/ipv4/ip_forward":              true,
		"net/ipv4/conf/eth0.1/forwarding":  true,
		"net.ipv4.conf.eth0/1.forwarding":  true,
		"net/ipv4/conf/eth0..1/forwarding": true,
		"net.ipv4.conf.eth0//1.forwarding": true,
		"fs.mqueue.msg_max":                true,
		"":                                 false,
		".":                                false,
		"/":                                false,
		"net.":                             false,
		"net/":                             false,
		"net..ipv4.ip_forward":             false,
		"net//ipv4/ip_forward":             false,
		"net./.ipv4.ip_forward":            false,
		"net/./ipv4/ip_forward":            false,
		"/net/ipv4/ip_forward":             false,
		"../net/ipv4/ip_forward":           false,
	} {
		if err := validate.Sysctl(l, name); (err == nil) != allowed {
			t.Errorf("%q: %v, want allowed = %v", name, err, allowed)
		}
	}
}
