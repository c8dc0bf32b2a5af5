package criconfig

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet/util/format"
	"k8s.io/kubernetes/pkg/securitycontext"
)

// imageUser is whom an image says its command runs as: a number, or a name.
type imageUser struct {
	uid  *int64
	name string
}

// containerSecurity is a container's effective security context as CRI wants it.
func (m *Maker) containerSecurity(pod *v1.Pod, c *v1.Container, user imageUser) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc := securitycontext.DetermineEffectiveSecurityContext(pod, c)
	if err := verifyNonRoot(pod, c, sc, user); err != nil {
		return nil, err
	}
	namespaces, err := m.namespaces(pod)
	if err != nil {
		return nil, err
	}
	s := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces,
		Capabilities:     capabilities(sc.Capabilities),
		SelinuxOptions:   selinux(sc.SELinuxOptions),
		Privileged:       sc.Privileged != nil && *sc.Privileged,
		ReadonlyRootfs:   sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem,
		NoNewPrivs:       securitycontext.AddNoNewPrivileges(sc),
		MaskedPaths:      securitycontext.ConvertToRuntimeMaskedPaths(sc.ProcMount),
		ReadonlyPaths:    securitycontext.ConvertToRuntimeReadonlyPaths(sc.ProcMount),
	}
	if sc.RunAsUser != nil {
		s.RunAsUser = &runtimeapi.Int64Value{Value: *sc.RunAsUser}
	} else {
		if user.uid != nil {
			s.RunAsUser = &runtimeapi.Int64Value{Value: *user.uid}
		}
		s.RunAsUsername = user.name
	}
	if sc.RunAsGroup != nil {
		s.RunAsGroup = &runtimeapi.Int64Value{Value: *sc.RunAsGroup}
	}
	if s.Seccomp, err = m.seccomp(pod, c); err != nil {
		return nil, err
	}
	if s.Apparmor, err = apparmor(pod, c); err != nil {
		return nil, err
	}
	if s.Apparmor != nil {
		//lint:ignore SA1019 runtimes from before the new field read it
		s.ApparmorProfile = oldApparmor(s.Apparmor)
	}
	if p := pod.Spec.SecurityContext; p != nil {
		if s.SupplementalGroups, s.SupplementalGroupsPolicy, err = groups(p); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// groups returns the supplementary groups that a pod asks for, its volumes' group first.
func groups(sc *v1.PodSecurityContext) ([]int64, runtimeapi.SupplementalGroupsPolicy, error) {
	var g []int64
	if sc.FSGroup != nil {
		g = append(g, *sc.FSGroup)
	}
	g = append(g, sc.SupplementalGroups...)
	if sc.SupplementalGroupsPolicy == nil {
		return g, 0, nil
	}
	policy, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*sc.SupplementalGroupsPolicy)]
	if !ok {
		return nil, 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *sc.SupplementalGroupsPolicy)
	}
	return g, runtimeapi.SupplementalGroupsPolicy(policy), nil
}

// verifyNonRoot refuses to run as root a container that must not. A user that the image gives by
// name cannot be judged.
func verifyNonRoot(pod *v1.Pod, c *v1.Container, sc *v1.SecurityContext, user imageUser) error {
	if sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", format.Pod(pod), c.Name)
	switch {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
	case sc.RunAsUser != nil:
		return nil
	case user.uid == nil && user.name != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", user.name, where)
	case user.uid != nil && *user.uid == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case user.uid != nil:
		if msgs := validation.IsValidUserID(*user.uid); len(msgs) > 0 {
			return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)): %s %s",
				*user.uid, math.MaxInt32, strings.Join(msgs, "; "), where)
		}
	}
	return nil
}

func capabilities(c *v1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	r := &runtimeapi.Capability{}
	for _, a := range c.Add {
		r.AddCapabilities = append(r.AddCapabilities, string(a))
	}
	for _, d := range c.Drop {
		r.DropCapabilities = append(r.DropCapabilities, string(d))
	}
	return r
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// seccomp returns the container's profile, or the pod's; without one it is the runtime's, as with
// upstream's seccompDefault, or none.
func (m *Maker) seccomp(pod *v1.Pod, c *v1.Container) (*runtimeapi.SecurityProfile, error) {
	var p *v1.SeccompProfile
	if pod.Spec.SecurityContext != nil {
		p = pod.Spec.SecurityContext.SeccompProfile
	}
	if c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil {
		p = c.SecurityContext.SeccompProfile
	}
	if p == nil && !m.SeccompUnconfined {
		p = &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}
	}
	switch {
	case p == nil:
	case p.Type == v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case p.Type == v1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			//lint:ignore ST1005 the words are upstream's, for a status
			return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost.")
		}
		return &runtimeapi.SecurityProfile{
			ProfileType:  runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(m.RootDir, "seccomp", *p.LocalhostProfile),
		}, nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
}

// apparmor returns the container's profile, or the pod's, or one that an old annotation names.
func apparmor(pod *v1.Pod, c *v1.Container) (*runtimeapi.SecurityProfile, error) {
	p := apparmorField(pod, c)
	switch {
	case p == nil:
		return nil, nil
	case p.Type == v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case p.Type == v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case p.Type == v1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}, nil
	case p.Type == v1.AppArmorProfileTypeLocalhost:
		return nil, errors.New("missing localhost apparmor profile name")
	default:
		return nil, fmt.Errorf("unknown apparmor profile type: %q", p.Type)
	}
}

func apparmorField(pod *v1.Pod, c *v1.Container) *v1.AppArmorProfile {
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile
	}
	switch old := pod.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]; {
	case old == v1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	case old == v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	case strings.HasPrefix(old, v1.DeprecatedAppArmorBetaProfileNamePrefix):
		name := strings.TrimPrefix(old, v1.DeprecatedAppArmorBetaProfileNamePrefix)
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	if pod.Spec.SecurityContext != nil {
		return pod.Spec.SecurityContext.AppArmorProfile
	}
	return nil
}

// oldApparmor is a profile in the form of CRI's deprecated field.
func oldApparmor(p *runtimeapi.SecurityProfile) string {
	switch p.ProfileType {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		return v1.DeprecatedAppArmorBetaProfileRuntimeDefault
	case runtimeapi.SecurityProfile_Unconfined:
		return v1.DeprecatedAppArmorBetaProfileNameUnconfined
	default:
		return v1.DeprecatedAppArmorBetaProfileNamePrefix + p.LocalhostRef
	}
}
