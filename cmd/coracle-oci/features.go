package main

import (
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/internal/version"
)

func (a *app) featuresCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "features",
		Short:   "Print what this runtime can do, as the runtime spec's features document",
		Example: "  coracle-oci features",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return printJSON(a.stdout, knownFeatures()) },
	}
}

func knownFeatures() features.Features {
	yes := true
	f := features.Features{
		OCIVersionMin: "1.0.0",
		OCIVersionMax: specs.Version,
		Hooks:         configs.KnownHookNames(),
		MountOptions:  specconv.KnownMountOptions(),
		Annotations:   map[string]string{"io.github.coracle-project.version": version.Number()},
		Linux: &features.Linux{
			Namespaces:      specconv.KnownNamespaces(),
			Capabilities:    capabilities.KnownCapabilities(),
			Cgroup:          &features.Cgroup{V1: &yes, V2: &yes, Systemd: &yes, SystemdUser: &yes, Rdma: &yes},
			Apparmor:        &features.Apparmor{Enabled: &yes},
			Selinux:         &features.Selinux{Enabled: &yes},
			IntelRdt:        &features.IntelRdt{Enabled: &yes},
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
	return f
}
