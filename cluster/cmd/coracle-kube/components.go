package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers"
	"github.com/coracle-project/coracle/cluster/controllers/rootca"
	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/pki"
	"github.com/coracle-project/coracle/cluster/scheduler"
	schedulerconfig "github.com/coracle-project/coracle/cluster/scheduler/config"
)

func apiserverCommand(log *slog.Logger) *cobra.Command {
	o := apiOptions{log: log}
	cmd := &cobra.Command{
		Use:     "apiserver",
		Short:   "run the API server alone",
		Example: "  coracle-kube apiserver --bind-address 0.0.0.0 --kubeconfig-out admin.kubeconfig",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			began := time.Now()
			if err := o.check(); err != nil {
				return err
			}
			if err := o.finishInterrupted(); err != nil {
				return err
			}
			bundle, err := o.credentials(hostname(), nil)
			if err != nil {
				return err
			}
			o.processors = adaptProcessors()
			server, err := o.server(bundle)
			if err != nil {
				return err
			}
			r := &renewer{log: log, reload: server.ReloadCredentials, ensure: func() (*pki.Bundle, error) { return o.credentials(hostname(), nil) }}
			return together(cmd.Context(), server, began, &o, map[string]http.Handler{}, r)
		},
	}
	o.define(cmd.Flags())
	return cmd
}

func schedulerCommand(log *slog.Logger) *cobra.Command {
	var config string
	cmd := alone(log, "scheduler", "run the scheduler alone", func(ctx context.Context, set *client.Set) (func() error, error) {
		o, err := schedulerconfig.Load(config)
		if err != nil {
			return nil, err
		}
		s, err := scheduler.New(set, o)
		return func() error { return s.Run(ctx) }, err
	})
	cmd.Flags().StringVar(&config, "scheduler-config", "", schedulerConfigUsage)
	return cmd
}

func controllersCommand(log *slog.Logger) *cobra.Command {
	var ca, key string
	var l lifetimes
	cmd := alone(log, "controllers", "run the controllers alone", func(ctx context.Context, set *client.Set) (func() error, error) {
		if err := l.check(); err != nil {
			return nil, err
		}
		var o controllers.Options
		l.set(&o)
		var followed []controllers.Runner
		if file := set.Config.CAFile; file != "" {
			ca, err := followAuthority(file)
			if err != nil {
				return nil, err
			}
			o.RootCA, followed = ca, append(followed, ca)
		} else if len(set.Config.CAData) > 0 {
			o.RootCA = rootca.Fixed(set.Config.CAData)
		}
		var err error
		if ca != "" {
			o.SigningCA = func() (tls.Certificate, error) { return tls.LoadX509KeyPair(ca, ca) }
			if _, err := o.SigningCA(); err != nil {
				return nil, fmt.Errorf("--cluster-ca %s cannot be used: %w", ca, err)
			}
		}
		if key != "" {
			if o.TokenGenerator, err = tokenGenerator(key); err != nil {
				return nil, fmt.Errorf("--service-account-key: %w", err)
			}
		}
		if err := awaitAPI(ctx, set.Kube, log); err != nil {
			return nil, err
		}
		account, err := accounts(ctx, set)
		if err != nil {
			return nil, err
		}
		all, err := controllers.New(controllers.Identities{Manager: set, Account: account}, o)
		return func() error {
			controllers.Run(ctx, append(all, followed...))
			return nil
		}, err
	})
	cmd.Flags().StringVar(&ca, "cluster-ca", "",
		"PEM file, certificate and key, of the authority that signs certificate requests (default: none are signed)")
	l.define(cmd.Flags())
	cmd.Flags().StringVar(&key, "service-account-key", "", "PEM file of the key that signs the tokens in Secrets (default: these stay empty)")
	return cmd
}

// tokenGenerator signs the tokens in Secrets of service accounts, which do not expire, with the key
// that the file has then: it may be replaced.
func tokenGenerator(path string) (serviceaccount.TokenGenerator, error) {
	_, err := tokenKey(path).load()
	return tokenKey(path), err
}

// tokenKey is a file with a key.
type tokenKey string

func (k tokenKey) load() (serviceaccount.TokenGenerator, error) {
	key, err := keyutil.PrivateKeyFromFile(string(k))
	if err != nil {
		return nil, fmt.Errorf("%s is no key: %w", string(k), err)
	}
	return serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
}

// GenerateToken implements serviceaccount.TokenGenerator.
func (k tokenKey) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	g, err := k.load()
	if err != nil {
		return "", err
	}
	return g.GenerateToken(ctx, claims, private)
}

func kubeletCommand(log *slog.Logger) *cobra.Command {
	n := nodeOptions{log: log}
	var root, cert, key, clients string
	cmd := alone(log, "kubelet", "run the kubelet alone", func(ctx context.Context, set *client.Set) (func() error, error) {
		if err := n.check(); err != nil {
			return nil, err
		}
		o := n.kubelet(root, nil)
		o.Alone, o.CertFile, o.KeyFile, o.ClientCAFile = true, cert, key, clients
		k, err := kubelet.New(set, o)
		return func() error { return k.Run(ctx) }, err
	})
	cmd.Flags().StringVar(&root, "root", "/var/lib/coracle/kube", "directory for what outlives a reboot")
	cmd.Flags().StringVar(&cert, "tls-cert", "", "file of the serving certificate (default: one that no authority signed)")
	cmd.Flags().StringVar(&key, "tls-key", "", "file of its key")
	cmd.Flags().StringVar(&clients, "client-ca", "", "file of the authority of clients' certificates, the API server's above all")
	n.define(cmd.Flags())
	return cmd
}

// alone is a command that runs one part against the API server of a kubeconfig.
func alone(log *slog.Logger, name, short string, part func(context.Context, *client.Set) (run func() error, err error)) *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: fmt.Sprintf("  coracle-kube %s --kubeconfig %s.kubeconfig", name, name),
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("--kubeconfig %s cannot be used: %w", kubeconfig, err)
			}
			config.QPS = -1 // the API server's own fairness is the limit
			kube, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			set, err := client.New(config, client.NewInformers(kube), log)
			if err != nil {
				return err
			}
			run, err := part(cmd.Context(), set)
			if cmd.Context().Err() != nil { // it was stopped while it started
				return nil
			}
			if err != nil {
				return err
			}
			go restWhenCalm(cmd.Context(), nil, log)
			set.Informers.Start(cmd.Context().Done())
			defer set.Informers.Shutdown()
			return run()
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server, and as whom")
	_ = cmd.MarkFlagRequired("kubeconfig") // it fails only for a flag that is not there
	return cmd
}
