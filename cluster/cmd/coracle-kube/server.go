package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers"
	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/kubelet/node"
	"github.com/coracle-project/coracle/cluster/pki"
	"github.com/coracle-project/coracle/cluster/scheduler"
)

func serverCommand() *cobra.Command {
	var api apiOptions
	var n nodeOptions
	cmd := &cobra.Command{
		Use:   "server",
		Short: "run API server, scheduler, controllers and kubelet in this process",
		Long: `server runs a whole single-node Kubernetes. The parts share one set of informers and reach the API
server without a socket; each acts in its own name, as RBAC allows it. Pods go on when it ends, and
it finds them again when it is started.`,
		Example: `  coracle-kube server
  coracle-kube server --root /srv/kube --port 7443 --cri unix:///run/containerd/containerd.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), api, n) },
	}
	api.define(cmd.Flags())
	n.define(cmd.Flags())
	return cmd
}

// serve runs all parts until ctx ends or one of them fails.
func serve(ctx context.Context, api apiOptions, n nodeOptions) error {
	if err := n.check(); err != nil {
		return err
	}
	if len(n.ips) == 0 {
		ip, err := node.Address(n.name)
		if err != nil {
			return fmt.Errorf("%w; name one with --node-ip", err)
		}
		n.ips = []string{ip}
	}
	bundle, err := api.credentials(n.name, n.ips)
	if err != nil {
		return err
	}
	server, err := api.server(bundle)
	if err != nil {
		return err
	}
	// Informers are asked for by New of each part, and started by the server as soon as it serves.
	schedule, err := newScheduler(server)
	if err != nil {
		return err
	}
	control, err := newControllers(server, bundle)
	if err != nil {
		return err
	}
	kube, err := newKubelet(server, bundle, api, n)
	if err != nil {
		return err
	}
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return server.Run(ctx) })
	parts.Go(func() error { return schedule.Run(ctx) })
	parts.Go(func() error {
		controllers.Run(ctx, control)
		return nil
	})
	parts.Go(func() error { return kube.Run(ctx) })
	parts.Go(func() error {
		select {
		case <-server.Ready():
			slog.Info("serving", "url", api.url(), "version", versions())
		case <-ctx.Done():
		}
		return nil
	})
	return parts.Wait()
}

// in gives a part of this process its own identity.
func in(server *apiserver.Server, name string, groups ...string) (*client.Set, error) {
	return client.New(server.ClientConfig(name, groups...), server.Informers())
}

func newScheduler(server *apiserver.Server) (*scheduler.Scheduler, error) {
	set, err := in(server, "system:kube-scheduler")
	if err != nil {
		return nil, err
	}
	return scheduler.New(set, scheduler.Options{})
}

func newControllers(server *apiserver.Server, bundle *pki.Bundle) ([]controllers.Runner, error) {
	// Upstream gives each controller a service account of its own; here they are one user, who
	// may do what all of them may.
	set, err := in(server, "system:kube-controller-manager", "system:masters")
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(bundle.CACert)
	if err != nil {
		return nil, err
	}
	return controllers.New(set, controllers.Options{
		RootCA: ca,
		SigningCA: func() (tls.Certificate, error) {
			cert, key := bundle.Authority()
			return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
		},
	})
}

func newKubelet(server *apiserver.Server, bundle *pki.Bundle, api apiOptions, n nodeOptions) (*kubelet.Kubelet, error) {
	set, err := in(server, "system:node:"+n.name, "system:nodes")
	if err != nil {
		return nil, err
	}
	files, err := bundle.Node(n.name, append([]string{n.name, "127.0.0.1"}, n.ips...))
	if err != nil {
		return nil, err
	}
	o := n.kubelet(api.root)
	o.CertFile, o.KeyFile, o.ClientCAFile = files.Serving, files.Serving, bundle.CACert
	return kubelet.New(set, o)
}
