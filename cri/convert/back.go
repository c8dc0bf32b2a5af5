// Package convert turns CRI's messages into the values of package pod, with errors that name the
// field that is wrong, and those values into CRI's messages.
package convert

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/pod/podconfig"
)

// The conversions here turn a config back into CRI's form, for verbose answers: crictl inspect, and
// programs that read its JSON, know CRI's names.

// PodBack is a pod's config in CRI's form. Pod makes the same config of it.
func PodBack(c *podconfig.Pod) *runtimeapi.PodSandboxConfig {
	out := &runtimeapi.PodSandboxConfig{
		Metadata:     PodMetadata(c),
		Hostname:     c.Hostname,
		LogDirectory: c.LogDirectory,
		DnsConfig:    &runtimeapi.DNSConfig{Servers: c.DNS.Servers, Searches: c.DNS.Searches, Options: c.DNS.Options},
		Labels:       c.Labels, Annotations: c.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: c.CgroupParent,
			Sysctls:      c.Sysctls,
			Overhead:     optionalResourcesBack(c.Overhead),
			Resources:    optionalResourcesBack(c.Resources),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: namespaceOptions(c.Namespaces),
				SelinuxOptions:   selinuxBack(c.SELinux),
				RunAsUser:        idBack(c.User.UID), RunAsGroup: idBack(c.User.GID),
				ReadonlyRootfs: c.ReadonlyRootfs, SupplementalGroups: c.SupplementalGroups,
				Privileged: c.Privileged, Seccomp: seccompBack(c.Seccomp), Apparmor: apparmorBack(c.AppArmor),
			},
		},
	}
	for _, p := range c.Ports {
		out.PortMappings = append(out.PortMappings, &runtimeapi.PortMapping{
			Protocol:      runtimeapi.Protocol(runtimeapi.Protocol_value[strings.ToUpper(p.Protocol)]),
			ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
		})
	}
	return out
}

// ContainerBack is a container's config in CRI's form. Container makes the same config of it.
func ContainerBack(c *podconfig.Container) *runtimeapi.ContainerConfig {
	out := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: c.Attempt},
		Image:    &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.UserImage},
		Command:  c.Command, Args: c.Args, WorkingDir: c.WorkingDir,
		Labels: c.Labels, Annotations: c.Annotations,
		LogPath: c.LogPath, Stdin: c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY,
		StopSignal: signalNumber(c.StopSignal),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       linuxResources(&c.Resources),
			SecurityContext: securityBack(&c.Security),
		},
	}
	for _, kv := range c.Env {
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: kv[0], Value: []byte(kv[1])})
	}
	for _, m := range c.Mounts {
		out.Mounts = append(out.Mounts, statusMount(m))
	}
	for _, d := range c.Devices {
		out.Devices = append(out.Devices, &runtimeapi.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	for _, name := range c.CDIDevices {
		out.CDIDevices = append(out.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	return out
}

func securityBack(s *podconfig.Security) *runtimeapi.LinuxContainerSecurityContext {
	out := &runtimeapi.LinuxContainerSecurityContext{
		Capabilities: &runtimeapi.Capability{
			AddCapabilities: s.AddCapabilities, DropCapabilities: s.DropCapabilities, AddAmbientCapabilities: s.AddAmbientCapabilities,
		},
		Privileged:       s.Privileged,
		NamespaceOptions: namespaceOptions(s.Namespaces),
		SelinuxOptions:   selinuxBack(s.SELinux),
		RunAsUser:        idBack(s.User.UID), RunAsGroup: idBack(s.User.GID), RunAsUsername: s.User.Name,
		ReadonlyRootfs: s.ReadonlyRootfs, SupplementalGroups: s.SupplementalGroups,
		NoNewPrivs: s.NoNewPrivs, MaskedPaths: s.MaskedPaths, ReadonlyPaths: s.ReadonlyPaths,
		Seccomp: seccompBack(s.Seccomp), Apparmor: apparmorBack(s.AppArmor),
	}
	if s.SupplementalGroupsStrict {
		out.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return out
}

func optionalResourcesBack(r *podconfig.Resources) *runtimeapi.LinuxContainerResources {
	if r == nil {
		return nil
	}
	return linuxResources(r)
}

func idBack(id *int64) *runtimeapi.Int64Value {
	if id == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *id}
}

func selinuxBack(s podconfig.SELinux) *runtimeapi.SELinuxOption {
	if s == (podconfig.SELinux{}) {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: s.User, Role: s.Role, Type: s.Type, Level: s.Level}
}

func seccompBack(s podconfig.Seccomp) *runtimeapi.SecurityProfile {
	switch s.Type {
	case podconfig.ProfileRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case podconfig.ProfileLocalhost:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: s.Localhost}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

// apparmorBack returns nil for "", where the node decides.
func apparmorBack(profile string) *runtimeapi.SecurityProfile {
	switch profile {
	case "":
		return nil
	case "runtime/default":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case "unconfined":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: strings.TrimPrefix(profile, localhost)}
}
