package runtimetest

import (
	"os"

	"github.com/coracle-project/coracle/runtime"
)

func hasSELinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

func hasAppArmor() bool {
	_, err := os.Stat("/sys/kernel/security/apparmor")
	return err == nil
}

var noModule = differs("no security module",
	"process.apparmorProfile, process.selinuxLabel or linux.mountLabel where the security module is missing",
	"the error is the module's, or the kernel's", "it names the field")

var labelTests = map[string]func(*rig){
	"labels need their security module": func(r *rig) {
		if !hasSELinux() {
			spec := r.spec("true")
			spec.Process.SelinuxLabel = "system_u:system_r:container_t:s0"
			r.refused(spec, either(r, noModule, "selinux", `process.selinuxLabel "system_u:system_r:container_t:s0"`))
			spec = r.spec("true")
			spec.Linux.MountLabel = "system_u:object_r:container_file_t:s0"
			r.refused(spec, either(r, noModule, "", `linux.mountLabel "system_u:object_r:container_file_t:s0"`))
		}
		if !hasAppArmor() {
			spec := r.spec("true")
			spec.Process.ApparmorProfile = "boat"
			r.refused(spec, either(r, noModule, "apparmor", `process.apparmorProfile "boat"`))
			c, pid := r.running()
			p := process("true")
			p.ApparmorProfile = "boat"
			_, err := c.Exec(r.Context(), p, runtime.ExecOptions{})
			if err == nil {
				r.Error("exec with a profile succeeded")
			}
			r.end(c, pid)
		}
	},
}
