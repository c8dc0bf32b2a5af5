package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers"
	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/scheduler"
)

func apiserverCommand() *cobra.Command {
	var o apiOptions
	cmd := &cobra.Command{
		Use:     "apiserver",
		Short:   "run the API server alone",
		Example: "  coracle-kube apiserver --bind-address 0.0.0.0 --kubeconfig-out admin.kubeconfig",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bundle, err := o.credentials(hostname(), nil)
			if err != nil {
				return err
			}
			server, err := o.server(bundle)
			if err != nil {
				return err
			}
			return server.Run(cmd.Context())
		},
	}
	o.define(cmd.Flags())
	return cmd
}

func schedulerCommand() *cobra.Command {
	return alone("scheduler", "run the scheduler alone", func(ctx context.Context, set *client.Set) (func() error, error) {
		s, err := scheduler.New(set, scheduler.Options{})
		return func() error { return s.Run(ctx) }, err
	})
}

func controllersCommand() *cobra.Command {
	return alone("controllers", "run the controllers alone", func(ctx context.Context, set *client.Set) (func() error, error) {
		all, err := controllers.New(set, controllers.Options{RootCA: set.Config.CAData})
		return func() error {
			controllers.Run(ctx, all)
			return nil
		}, err
	})
}

func kubeletCommand() *cobra.Command {
	var n nodeOptions
	var root string
	cmd := alone("kubelet", "run the kubelet alone", func(ctx context.Context, set *client.Set) (func() error, error) {
		if err := n.check(); err != nil {
			return nil, err
		}
		o := n.kubelet(root)
		o.Alone = true
		k, err := kubelet.New(set, o)
		return func() error { return k.Run(ctx) }, err
	})
	cmd.Flags().StringVar(&root, "root", "/var/lib/coracle/kube", "directory for what outlives a reboot")
	n.define(cmd.Flags())
	return cmd
}

// alone is a command that runs one part against the API server of a kubeconfig.
func alone(name, short string, part func(context.Context, *client.Set) (run func() error, err error)) *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: fmt.Sprintf("  coracle-kube %s --kubeconfig %s.kubeconfig", name, name),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("--kubeconfig: %w", err)
			}
			config.QPS = -1 // the API server's own fairness is the limit
			kube, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			set, err := client.New(config, client.NewInformers(kube))
			if err != nil {
				return err
			}
			run, err := part(cmd.Context(), set)
			if err != nil {
				return err
			}
			set.Informers.Start(cmd.Context().Done())
			defer set.Informers.Shutdown()
			return run()
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server, and as whom")
	_ = cmd.MarkFlagRequired("kubeconfig") // it fails only for a flag that is not there
	return cmd
}
