package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	componentversion "k8s.io/component-base/version"
)

// Set by the linker.
var version, commit string

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "coracle-kube",
		Short: "run a Kubernetes in one process",
		Long: `coracle-kube is the API server, the scheduler, the controllers and the kubelet of a compact
Kubernetes. "coracle up" runs "coracle-kube server" and keeps it running.`,
		Example: `  coracle-kube server --cri unix:///run/coracle/coracle.sock
  coracle-kube scheduler --kubeconfig admin.kubeconfig`,
		Version:       versions(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("coracle-kube {{.Version}}\n")
	root.AddCommand(serverCommand(), apiserverCommand(), schedulerCommand(), controllersCommand(), kubeletCommand())
	return root
}

// versions is this build's version and that of the Kubernetes it speaks.
func versions() string {
	v := strings.TrimSpace(version + " " + commit)
	if v == "" {
		v = "v0.0.0-dev"
	}
	return v + " (Kubernetes " + componentversion.Get().GitVersion + ")"
}

// hostname is the default name of a node.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return strings.ToLower(name)
}
