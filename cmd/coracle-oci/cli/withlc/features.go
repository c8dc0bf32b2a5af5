package withlc

import (
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	runcfeatures "github.com/opencontainers/runc/types/features"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"github.com/coracle-project/coracle/internal/version"
)

func knownFeatures() features.Features {
	yes := true
	f := features.Features{
		OCIVersionMin: "1.0.0",
		OCIVersionMax: specs.Version,
		Hooks:         configs.KnownHookNames(),
		MountOptions:  specconv.KnownMountOptions(),
		Annotations: map[string]string{
			"io.github.coracle-project.version": version.Number(),
			// runc's names, which callers look for.
			runcfeatures.AnnotationRuncCheckpointEnabled: "true",
		},
		PotentiallyUnsafeConfigAnnotations: []string{"bundle", "org.systemd.property.", "org.criu.config"},
		Linux: &features.Linux{
			Namespaces:   specconv.KnownNamespaces(),
			Capabilities: capabilities.KnownCapabilities(),
			Cgroup:       &features.Cgroup{V1: &yes, V2: &yes, Systemd: &yes, SystemdUser: &yes, Rdma: &yes},
			Apparmor:     &features.Apparmor{Enabled: &yes},
			Selinux:      &features.Selinux{Enabled: &yes},
			IntelRdt:     &features.IntelRdt{Enabled: &yes, Schemata: &yes, Monitoring: &yes},
			NetDevices:   &features.NetDevices{Enabled: &yes},
			MemoryPolicy: &features.MemoryPolicy{
				Modes: specconv.KnownMemoryPolicyModes(),
				Flags: specconv.KnownMemoryPolicyFlags(),
			},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: &yes}},
		},
	}
	if seccomp.Enabled {
		f.Linux.Seccomp = &features.Seccomp{
			Enabled:        &yes,
			Actions:        seccomp.KnownActions(),
			Operators:      seccomp.KnownOperators(),
			Archs:          seccomp.KnownArchs(),
			KnownFlags:     seccomp.KnownFlags(),
			SupportedFlags: seccomp.SupportedFlags(),
		}
	}
	if s := libseccompVersion(); s != "" {
		f.Annotations[runcfeatures.AnnotationLibseccompVersion] = s
	}
	return f
}
