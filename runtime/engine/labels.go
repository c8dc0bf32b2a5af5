package engine

import (
	"fmt"
	"os"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// labelable refuses what security modules are to do that this machine has not.
func labelable(p *specs.Process, mountLabel string) error {
	for _, l := range []struct {
		field, value, module string
		enabled              func() bool
	}{
		{"process.apparmorProfile", p.ApparmorProfile, "AppArmor", appArmor},
		{"process.selinuxLabel", p.SelinuxLabel, "SELinux", seLinux},
		{"linux.mountLabel", mountLabel, "SELinux", seLinux},
	} {
		if l.value != "" && !l.enabled() {
			return fmt.Errorf("%s %q is %w: %s is not enabled on this machine; enable it or remove the field",
				l.field, l.value, runtime.ErrUnsupported, l.module)
		}
	}
	return nil
}

// Neither changes while a machine runs.
var (
	appArmor = sync.OnceValue(func() bool {
		on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
		return err == nil && len(on) > 0 && on[0] == 'Y'
	})
	seLinux = sync.OnceValue(func() bool {
		var st unix.Statfs_t
		return unix.Statfs("/sys/fs/selinux", &st) == nil && st.Type == unix.SELINUX_MAGIC
	})
)
