package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	componentversion "k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/coracle-project/coracle/cluster/apiserver"
)

// Set by the linker.
var version, commit string

// command logs by log, whose level --log-level sets. A server waits at g.
func command(log *slog.Logger, levels *slog.LevelVar, g *gate) *cobra.Command {
	var level string
	var version bool
	root := &cobra.Command{
		Use:   "coracle-kube",
		Short: "run a Kubernetes in one process",
		Long: `coracle-kube is the API server, the scheduler, the controllers, the kubelet and the DNS of a compact
Kubernetes. "coracle up" runs "coracle-kube server" and keeps it running.`,
		Example: `  coracle-kube server --cri unix:///run/coracle/coracle.sock
  coracle-kube scheduler --kubeconfig admin.kubeconfig`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			sparingly()
			apiserver.SurvivePanics()
			return startLog(level, log, levels)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !version {
				return cmd.Help()
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "coracle-kube "+versions())
			return err
		},
	}
	root.PersistentFlags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	// cobra's own flag needs a template, and then no method can be left out by the linker.
	root.Flags().BoolVarP(&version, "version", "v", false, "print the version")
	root.AddCommand(serverCommand(log, g), apiserverCommand(log), schedulerCommand(log), controllersCommand(log), kubeletCommand(log),
		proxyCommand(log), policyCommand(log), dnsCommand(log), balancersCommand(), overlayCommand(), snapshotCommand(log), tokenCommand(log),
		certificateCommand(), agentCommand(log), controlPlaneCommand(log))
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

// startLog sets the level, and sends the log of imported packages to stderr, too. Of what
// upstream's packages log, only errors are of interest to an operator who does not debug.
func startLog(level string, log *slog.Logger, levels *slog.LevelVar) error {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("--log-level %q is none of debug, info, warn and error", level)
	}
	levels.Set(l)
	upstream := l
	if l == slog.LevelInfo {
		upstream = slog.LevelWarn
	}
	slog.SetDefault(log)
	klog.SetSlogLogger(slog.New(upstreamLog{slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: upstream})}))
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // warnings are for those who write manifests
	return nil
}

// hostname is the default name of a node.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return strings.ToLower(name)
}

// noArguments refuses arguments, with a guess at what was meant.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes flags only, and does not know what to do with %q", cmd.CommandPath(), strings.Join(args, " "))
	}
	return nil
}
