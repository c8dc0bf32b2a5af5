package convert

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// security converts a container's security context; nil is the zero one.
func security(s *runtimeapi.LinuxContainerSecurityContext) (podconfig.Security, error) {
	const where = "config.linux.security_context"
	out := podconfig.Security{
		Privileged:             s.GetPrivileged(),
		AddCapabilities:        s.GetCapabilities().GetAddCapabilities(),
		DropCapabilities:       s.GetCapabilities().GetDropCapabilities(),
		AddAmbientCapabilities: s.GetCapabilities().GetAddAmbientCapabilities(),
		SupplementalGroups:     s.GetSupplementalGroups(),
		ReadonlyRootfs:         s.GetReadonlyRootfs(),
		NoNewPrivs:             s.GetNoNewPrivs(),
		MaskedPaths:            s.GetMaskedPaths(),
		ReadonlyPaths:          s.GetReadonlyPaths(),
		SELinux:                selinux(s.GetSelinuxOptions()),
	}
	switch s.GetSupplementalGroupsPolicy() {
	case runtimeapi.SupplementalGroupsPolicy_Merge:
	case runtimeapi.SupplementalGroupsPolicy_Strict:
		out.SupplementalGroupsStrict = true
	default:
		return podconfig.Security{}, field.Invalid(where, "unknown supplemental_groups_policy %d", s.GetSupplementalGroupsPolicy())
	}
	for _, gid := range out.SupplementalGroups {
		if gid < 0 || gid > maxID {
			return podconfig.Security{}, field.Invalid(where+".supplemental_groups", "%d is not a group id", gid)
		}
	}
	var err error
	if out.Namespaces, err = namespaces(where+".namespace_options", s.GetNamespaceOptions()); err != nil {
		return podconfig.Security{}, err
	}
	if out.User, err = user(where, s.GetRunAsUser(), s.GetRunAsGroup(), s.GetRunAsUsername()); err != nil {
		return podconfig.Security{}, err
	}
	if out.Seccomp, err = seccomp(where+".seccomp", s.GetSeccomp(), deprecatedSeccomp(s)); err != nil {
		return podconfig.Security{}, err
	}
	if out.AppArmor, err = apparmor(where+".apparmor", s.GetApparmor(), deprecatedAppArmor(s)); err != nil {
		return podconfig.Security{}, err
	}
	return out, nil
}

// maxID is the largest id that a process can have; 2^32-1 means "no change" to the kernel.
const maxID = 1<<32 - 2

// user converts who to run as. CRI: a user by id or by name, not both; a group
// only together with a user.
func user(where string, uid, gid *runtimeapi.Int64Value, name string) (podconfig.User, error) {
	if uid != nil && name != "" {
		return podconfig.User{}, field.Invalid(where, "has both run_as_user %d and run_as_username %q", uid.GetValue(), name)
	}
	if gid != nil && uid == nil && name == "" {
		return podconfig.User{}, field.Invalid(where+".run_as_group", "needs run_as_user or run_as_username")
	}
	out := podconfig.User{Name: name}
	for _, id := range []struct {
		name string
		in   *runtimeapi.Int64Value
		out  **int64
	}{{"run_as_user", uid, &out.UID}, {"run_as_group", gid, &out.GID}} {
		if id.in == nil {
			continue
		}
		n := id.in.GetValue()
		if n < 0 || n > maxID {
			return podconfig.User{}, field.Invalid(where+"."+id.name, "%d is not an id", n)
		}
		*id.out = &n
	}
	return out, nil
}

func selinux(o *runtimeapi.SELinuxOption) podconfig.SELinux {
	return podconfig.SELinux{User: o.GetUser(), Role: o.GetRole(), Type: o.GetType(), Level: o.GetLevel()}
}

const localhost = "localhost/"

// seccomp converts a profile. old is the deprecated form, which counts only without
// the new one.
func seccomp(where string, p *runtimeapi.SecurityProfile, old string) (podconfig.Seccomp, error) {
	if p == nil {
		switch {
		case old == "" || old == "unconfined":
			return podconfig.Seccomp{Type: podconfig.ProfileUnconfined}, nil
		case old == "runtime/default" || old == "docker/default":
			return podconfig.Seccomp{Type: podconfig.ProfileRuntimeDefault}, nil
		case strings.HasPrefix(old, localhost):
			return podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: strings.TrimPrefix(old, localhost)}, nil
		}
		return podconfig.Seccomp{}, field.Invalid(where+"_profile_path", "unknown profile %q", old)
	}
	switch p.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		return podconfig.Seccomp{Type: podconfig.ProfileRuntimeDefault}, nil
	case runtimeapi.SecurityProfile_Unconfined:
		return podconfig.Seccomp{Type: podconfig.ProfileUnconfined}, nil
	case runtimeapi.SecurityProfile_Localhost:
		path := strings.TrimPrefix(p.GetLocalhostRef(), localhost)
		if path == "" {
			return podconfig.Seccomp{}, field.Invalid(where+".localhost_ref", "is required with Localhost")
		}
		return podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: path}, nil
	}
	return podconfig.Seccomp{}, field.Invalid(where, "unknown profile type %d", p.GetProfileType())
}

// apparmor converts a profile to the form that pod.Security has.
func apparmor(where string, p *runtimeapi.SecurityProfile, old string) (string, error) {
	if p == nil {
		if old == "" || old == "unconfined" || old == "runtime/default" || len(old) > len(localhost) && strings.HasPrefix(old, localhost) {
			return old, nil
		}
		return "", field.Invalid(where+"_profile", "unknown profile %q", old)
	}
	switch p.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		return "runtime/default", nil
	case runtimeapi.SecurityProfile_Unconfined:
		return "unconfined", nil
	case runtimeapi.SecurityProfile_Localhost:
		name := strings.TrimPrefix(p.GetLocalhostRef(), localhost)
		if name == "" {
			return "", field.Invalid(where+".localhost_ref", "is required with Localhost")
		}
		return localhost + name, nil
	}
	return "", field.Invalid(where, "unknown profile type %d", p.GetProfileType())
}

// The deprecated fields are still what older kubelets send.

func deprecatedSandboxSeccomp(s *runtimeapi.LinuxSandboxSecurityContext) string {
	//lint:ignore SA1019 see above
	return s.GetSeccompProfilePath()
}

func deprecatedSeccomp(s *runtimeapi.LinuxContainerSecurityContext) string {
	//lint:ignore SA1019 see above
	return s.GetSeccompProfilePath()
}

func deprecatedAppArmor(s *runtimeapi.LinuxContainerSecurityContext) string {
	//lint:ignore SA1019 see above
	return s.GetApparmorProfile()
}
