package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/controlplane"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/node/token"
)

// invitation is what a machine needs to join.
type invitation struct {
	token.Info
	Token  string `json:"token"`
	Server string `json:"server"`
	CAHash string `json:"caHash"`
	// CertificateKey opens the cluster's keys, for a token of control-plane nodes.
	CertificateKey string `json:"certificateKey,omitempty"`
}

// clientOf returns how to reach the API server of a kubeconfig, with a limit for each request.
func clientOf(kubeconfig string, limit time.Duration) (*rest.Config, *kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	config.Timeout = limit
	kube, err := kubernetes.NewForConfig(config)
	return config, kube, err
}

// tokenCommand is what `coracle token` runs.
func tokenCommand(log *slog.Logger) *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use: "token", Short: "make, list and delete the tokens with which machines join",
		Hidden: true, // coracle token is for people
	}
	cmd.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server, and as whom")
	verb := func(use, short, example string, args cobra.PositionalArgs,
		act func(ctx context.Context, kube kubernetes.Interface, args []string) (any, error),
	) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Example: example, Args: args,
			RunE: func(cmd *cobra.Command, args []string) error {
				_, kube, err := clientOf(kubeconfig, callLimit)
				if err != nil {
					return err
				}
				answer, err := act(cmd.Context(), kube, args)
				if err != nil {
					return err
				}
				return json.NewEncoder(cmd.OutOrStdout()).Encode(answer)
			},
		}
	}
	var n token.New
	var given bool
	var keys, settings string
	create := verb("create", "make a token", "  coracle-kube token create --kubeconfig admin.kubeconfig", noArguments,
		func(ctx context.Context, kube kubernetes.Interface, _ []string) (_ any, err error) {
			if given {
				if n.Token, err = token.Read(cmd.InOrStdin()); err != nil {
					return nil, err
				}
			}
			i, err := invite(ctx, kube, n)
			if err != nil || keys == "" {
				return i, err
			}
			if i.CertificateKey, err = controlplane.Upload(ctx, kube, i.Info, keys, json.RawMessage(settings), log); err != nil {
				return nil, errors.Join(err, withdraw(ctx, kube, i.ID))
			}
			return i, nil
		})
	create.Flags().StringVar(&keys, "control-plane-keys", "", "`DIRECTORY` with the keys that another control-plane node gets")
	create.Flags().StringVar(&settings, "settings", "{}", "JSON that it gets with them")
	create.Flags().BoolVar(&given, "token-stdin", false, "read the token, ID.SECRET, from standard input instead of drawing one")
	create.Flags().DurationVar(&n.TTL, "ttl", 24*time.Hour, "how long it is valid; 0 for no end")
	create.Flags().StringVar(&n.Description, "description", "", "what it is for")
	cmd.AddCommand(create,
		verb("list", "list tokens", "  coracle-kube token list --kubeconfig admin.kubeconfig", noArguments,
			func(ctx context.Context, kube kubernetes.Interface, _ []string) (any, error) {
				return token.List(ctx, kube)
			}),
		verb("delete ID", "delete a token", "  coracle-kube token delete --kubeconfig admin.kubeconfig abcdef", cobra.ExactArgs(1),
			func(ctx context.Context, kube kubernetes.Interface, args []string) (any, error) {
				return struct{}{}, token.Delete(ctx, kube, args[0])
			}))
	return cmd
}

// invite makes a token, and says what else a machine needs. Nothing is made for a cluster that no
// other machine reaches.
func invite(ctx context.Context, kube kubernetes.Interface, n token.New) (*invitation, error) {
	server, ca, err := clusterinfo.Published(ctx, kube)
	if err != nil {
		return nil, err
	}
	// Of several API servers, the one that was published last may be away, and this one answers.
	own := kube.CoreV1().RESTClient().Get().URL()
	if ip, err := netip.ParseAddr(own.Hostname()); err == nil && !ip.IsLoopback() {
		server = "https://" + own.Host
	}
	hash, err := discovery.Hash(ca)
	if err != nil {
		return nil, fmt.Errorf("the cluster's authority: %w", err)
	}
	text, info, err := token.Create(ctx, kube, n)
	if err != nil {
		return nil, err
	}
	if err := clusterinfo.AwaitSigned(ctx, kube, info.ID); err != nil {
		return nil, errors.Join(err, withdraw(ctx, kube, info.ID))
	}
	return &invitation{Info: info, Token: text, Server: server, CAHash: hash}, nil
}

// withdraw deletes a token that is of no use, also when ctx has ended.
func withdraw(ctx context.Context, kube kubernetes.Interface, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	return token.Delete(ctx, kube, id)
}
