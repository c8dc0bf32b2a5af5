package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/node/controlplane"
	"github.com/coracle-project/coracle/cluster/node/credentials"
	"github.com/coracle-project/coracle/cluster/node/servers"
	"github.com/coracle-project/coracle/cluster/pki"
)

// controlPlaneCommand is what `coracle up --join`, `coracle leave` and `coracle node remove` run.
func controlPlaneCommand(log *slog.Logger) *cobra.Command {
	cmd := &cobra.Command{
		Use: "controlplane", Short: "join and leave the control plane of a cluster",
		Hidden: true, // coracle is for people
	}
	cmd.AddCommand(controlPlaneJoinCommand(log), controlPlaneRemoveCommand(), controlPlaneDrainCommand(), controlPlaneForceCommand())
	return cmd
}

// longestSecrets bounds what is read of a token and a certificate key, in bytes.
const longestSecrets = 4 << 10

func controlPlaneJoinCommand(log *slog.Logger) *cobra.Command {
	var g controlplane.Given
	var m controlplane.Machine
	var bind string
	var port int
	var settings bool
	var shared []string
	cmd := &cobra.Command{
		Use: "join https://HOST:PORT", Short: "get what makes this machine a control-plane node of a cluster", Args: cobra.ExactArgs(1),
		Long: "join reads the token and the certificate key, with a space between them, from standard input: arguments are visible to every " +
			"user of the machine.",
		Example: "  coracle-kube controlplane join https://10.0.0.1:6443 --ca-hash sha256:… --bind-address 10.0.0.2 < token-and-key",
		RunE: func(cmd *cobra.Command, args []string) error {
			g.Server = args[0]
			secrets, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), longestSecrets))
			if err != nil {
				return err
			}
			g.Token, g.CertificateKey, _ = strings.Cut(strings.TrimSpace(string(secrets)), " ")
			m.Log = log
			if m.URL, err = memberURL(bind, port); err != nil {
				return err
			}
			if m.Shared, err = sharedFiles(shared); err != nil {
				return err
			}
			var answer any
			if settings {
				answer, err = controlplane.Settings(cmd.Context(), g)
			} else {
				answer, err = controlplane.Join(cmd.Context(), g, m)
			}
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(answer)
		},
	}
	cmd.Flags().BoolVar(&settings, "only-settings", false, "print the cluster's settings, and change nothing")
	cmd.Flags().StringSliceVar(&g.Hashes, "ca-hash", nil, "`HASH` of the cluster's authority, sha256:…")
	cmd.Flags().StringVar(&m.Root, "root", "/var/lib/coracle/kube", "directory for what outlives a reboot")
	cmd.Flags().StringVar(&m.Name, "node-name", hostname(), "name of this node")
	cmd.Flags().StringVar(&bind, "bind-address", "", "address that the API server will serve on")
	cmd.Flags().IntVar(&port, "etcd-peer-port", 2380, "port for etcd's other members")
	cmd.Flags().StringArrayVar(&shared, "shared-file", nil, "`FLAG=FILE` of the API server that all control-plane nodes have to agree on")
	return cmd
}

func sharedFiles(given []string) (apiserver.SharedFiles, error) {
	all := apiserver.SharedFiles{}
	for _, one := range given {
		flag, path, ok := strings.Cut(one, "=")
		if !ok || flag == "" || path == "" {
			return nil, fmt.Errorf("--shared-file %q is not FLAG=FILE", one)
		}
		all[flag] = path
	}
	return all, nil
}

// memberURL is where the other members of etcd reach the one of a machine whose API server serves
// on an address. Its port must be free.
func memberURL(bind string, port int) (string, error) {
	at := apiserver.Options{BindAddress: bind, Port: port}.URL()
	if at == "" {
		return "", fmt.Errorf("other machines do not reach %s: give 'coracle up' a --bind-address that they reach", bind)
	}
	l, err := net.Listen("tcp", strings.TrimPrefix(at, "https://"))
	if err != nil {
		return "", fmt.Errorf("the port for etcd's other members is not free: %w", err)
	}
	return at, l.Close() // the server opens it
}

func controlPlaneRemoveCommand() *cobra.Command {
	var kubeconfig string
	var self bool
	cmd := &cobra.Command{
		Use: "remove NODE", Short: "take a node, and its member of etcd if it has one, out of the cluster", Args: cobra.ExactArgs(1),
		Example: "  coracle-kube controlplane remove two --kubeconfig admin.kubeconfig",
		RunE: func(cmd *cobra.Command, args []string) error {
			config, kube, err := clientOf(kubeconfig, removalLimit)
			if err != nil {
				return err
			}
			if self {
				if config, kube, err = anotherServer(cmd.Context(), kube, config); err != nil {
					return inWords(config.Host, err)
				}
			}
			removed, err := removeNode(cmd.Context(), kube, args[0])
			if err != nil {
				return inWords(config.Host, err)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(removed)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server, and as whom")
	cmd.Flags().BoolVar(&self, "self", false, "ask another API server: the one in the kubeconfig is the node's own")
	return cmd
}

// anotherServer returns how to reach an API server of the cluster that is not the one of own, and
// is ready. With an error it returns own.
func anotherServer(ctx context.Context, kube kubernetes.Interface, own *rest.Config) (*rest.Config, *kubernetes.Clientset, error) {
	all, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	})
	if err != nil {
		return own, nil, err
	}
	for i := range all.Items {
		for _, server := range servers.Addresses(&all.Items[i]) {
			other := rest.CopyConfig(own)
			if other.Host = "https://" + server; sameServer(server, own.Host) {
				continue
			}
			client, err := kubernetes.NewForConfig(other)
			if err != nil {
				return own, nil, err
			}
			asking, cancel := context.WithTimeout(ctx, callLimit)
			err = client.Discovery().RESTClient().Get().AbsPath("/readyz").MaxRetries(0).Do(asking).Error()
			cancel()
			if err == nil { // one that has died is published for some seconds
				return other, client, nil
			}
		}
	}
	return own, nil, errors.New("no other API server runs: with this machine's part the cluster ends")
}

// sameServer is whether the address of a server is the one of this machine at the URL own. That may
// name loopback, if the server serves on all addresses.
func sameServer(server, own string) bool {
	u, err := url.Parse(own)
	if err != nil || u.Host == server {
		return err == nil
	}
	host, port, err := net.SplitHostPort(server)
	if err != nil || port != u.Port() {
		return false
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(net.ParseIP(host))
	})
}

func controlPlaneDrainCommand() *cobra.Command {
	var kubeconfig string
	var limit time.Duration
	var self bool
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "let no more pods come to a node, and evict those that it has", Args: cobra.ExactArgs(1),
		Example: "  coracle-kube controlplane drain two --kubeconfig admin.kubeconfig",
		RunE: func(cmd *cobra.Command, args []string) error {
			config, kube, err := clientOf(kubeconfig, callLimit)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			if self {
				if _, _, err := anotherServer(ctx, kube, config); err != nil {
					return inWords(config.Host, err)
				}
			}
			return member{credentials.Node{Name: args[0], Server: config.Host}, kube}.drain(ctx)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server, and as whom")
	cmd.Flags().BoolVar(&self, "self", false, "change nothing unless another API server runs: the one in the kubeconfig is the node's own")
	cmd.Flags().DurationVar(&limit, "timeout", 2*time.Minute, "limit for all of it")
	return cmd
}

// removalLimit bounds one request; etcd may need some seconds to change its members.
const removalLimit = 30 * time.Second

// removal says what was there to be removed.
type removal struct {
	Member bool `json:"member"`
	Node   bool `json:"node"`
}

// removeNode removes a node, and its member of etcd first: it counts for the quorum.
func removeNode(ctx context.Context, kube kubernetes.Interface, name string) (r removal, err error) {
	err = kube.CoreV1().RESTClient().Delete().AbsPath(path.Join(apiserver.MembersPath, url.PathEscape(name))).Do(ctx).Error()
	switch {
	case err == nil:
		r.Member = true
	case !apierrors.IsNotFound(err):
		return r, fmt.Errorf("remove %s from etcd's members: %w", name, err)
	}
	if strings.Contains(name, "/") { // the URL of a member that never started, and so has no node
		return r, noneRemoved(r, name)
	}
	// The member may have led: etcd refuses what comes while another is elected.
	waiting, cancel := context.WithTimeout(ctx, removalLimit)
	defer cancel()
	err = until(waiting, func() (error, error) {
		err := kube.CoreV1().Nodes().Delete(waiting, name, metav1.DeleteOptions{})
		if err == nil {
			r.Node = true
		}
		if apierrors.IsNotFound(err) || !r.Member {
			return nil, err
		}
		return err, nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return r, fmt.Errorf("delete node %s: %w", name, err)
	}
	return r, noneRemoved(r, name)
}

func noneRemoved(r removal, name string) error {
	if r == (removal{}) {
		return fmt.Errorf("the cluster has no node %s", name)
	}
	return nil
}

// inWords leaves out of an error what the reader knows.
func inWords(server string, err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return fmt.Errorf("the API server at %s does not answer: %w; 'coracle status' says what to do", server, request.Err)
	}
	return err
}

func controlPlaneForceCommand() *cobra.Command {
	var root string
	var undo bool
	var port int
	cmd := &cobra.Command{
		Use: "force", Short: "have the next start go on without the other members of etcd, which are gone for good", Args: noArguments,
		Example: "  coracle-kube controlplane force",
		RunE: func(cmd *cobra.Command, _ []string) error {
			lock, err := etcd.Lock(root)
			if err != nil {
				return err
			}
			defer lock.Close()
			peers, err := etcd.ReadPeers(root)
			if err != nil {
				return err
			}
			if peers == nil {
				return errors.New("this machine's cluster has no other control-plane nodes")
			}
			if peers.Force = !undo; peers.Force {
				if err := etcd.CheckForce(cmd.Context(), otherMembers(root, port)); err != nil {
					return err
				}
			}
			return peers.Write(root)
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "take that back: the next start needs the other members")
	askPort(cmd, &port)
	cmd.Flags().StringVar(&root, "root", "/var/lib/coracle/kube", "directory for what outlives a reboot")
	return cmd
}

// askPort gives a command the flag for [otherMembers].
func askPort(cmd *cobra.Command, port *int) {
	cmd.Flags().IntVar(port, "port", 6443, "port of the API servers on the other control-plane nodes, which are asked first")
}

// otherMembers says how to ask the other members of the cluster in root, whose API servers have a
// port.
func otherMembers(root string, port int) etcd.Options {
	keys := filepath.Join(root, "pki")
	files := (&pki.Bundle{Dir: keys}).EtcdFiles()
	return etcd.Options{Dir: root, PeerCA: files.CACert, PeerPair: files.Pair, APICA: filepath.Join(keys, "ca.crt"), APIPort: port}
}
