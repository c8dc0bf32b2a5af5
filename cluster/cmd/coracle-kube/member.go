package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-project/coracle/cluster/kubelet/node"
	"github.com/coracle-project/coracle/cluster/node/controlplane"
	"github.com/coracle-project/coracle/cluster/node/credentials"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/node/token"
)

// joinCommand is what `coracle join` runs.
func joinCommand(root *string) *cobra.Command {
	var g discovery.Given
	var name string
	cmd := &cobra.Command{
		Use: "join https://HOST:PORT", Short: "get what makes this machine a node of a cluster", Args: cobra.ExactArgs(1),
		Long:    "join reads the token, ID.SECRET, from standard input: arguments are visible to every user of the machine.",
		Hidden:  true, // coracle join is for people
		Example: "  coracle-kube agent join https://10.0.0.1:6443 --ca-hash sha256:1234… < token",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			g.Server = args[0]
			if g.Token, err = token.Read(cmd.InOrStdin()); err != nil {
				return err
			}
			if err := controlplane.Forget(*root); err != nil {
				return err
			}
			_, err = credentials.Join(cmd.Context(), credentialsDir(*root), g, name, firstSettings(*root))
			return err
		},
	}
	cmd.Flags().StringSliceVar(&g.Hashes, "ca-hash", nil, "`HASH` of the cluster's authority, sha256:…")
	cmd.Flags().StringVar(&name, "node-name", hostname(), "name of this node")
	return cmd
}

// memberCommands act as the node of this machine, for `coracle join` and `coracle leave`.
func memberCommands(root *string, log *slog.Logger) []*cobra.Command {
	verb := func(use, short string, act func(member, context.Context) error) *cobra.Command {
		var limit time.Duration
		cmd := &cobra.Command{
			Use: use, Short: short, Example: "  coracle-kube agent " + use, Args: noArguments, Hidden: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				m, err := newMember(*root, log)
				if err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(cmd.Context(), limit)
				defer cancel()
				return act(m, ctx)
			},
		}
		cmd.Flags().DurationVar(&limit, "timeout", 2*time.Minute, "limit for all of it")
		return cmd
	}
	var since instant
	await := verb("await", "wait until this node is Ready, or needs only a network plugin, and print why it waits for one",
		func(m member, ctx context.Context) error {
			waits, err := m.await(ctx, time.Time(since))
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(waits)
		})
	await.Flags().Var(&since, "since", "`TIME` (RFC 3339) from which on the kubelet must have said so")
	return []*cobra.Command{
		await,
		verb("check", "say whether this node may leave, and change nothing", member.check),
		verb("drain", "let no more pods come to this node, and evict those that it has", member.drain),
		verb("unregister", "delete this node from the cluster", member.unregister),
	}
}

// instant is a time as a flag.
type instant time.Time

// Set implements pflag.Value, as do the others.
func (i *instant) Set(text string) error {
	at, err := time.Parse(time.RFC3339, text)
	*i = instant(at)
	return err
}

func (*instant) Type() string { return "time" }

func (i *instant) String() string {
	if at := time.Time(*i); !at.IsZero() {
		return at.Format(time.RFC3339)
	}
	return ""
}

// member is this machine's node, as its credentials let it act.
type member struct {
	credentials.Node
	kube kubernetes.Interface
}

func newMember(root string, log *slog.Logger) (member, error) {
	n, err := credentials.Read(credentialsDir(root), log)
	if err != nil {
		return member{}, err
	}
	if err := n.Check(time.Now()); err != nil {
		return member{}, err
	}
	config := n.Config()
	config.Timeout = callLimit
	kube, err := kubernetes.NewForConfig(config)
	return member{n, kube}, err
}

// again is how long member waits between two looks.
const again = time.Second

// until asks until the answer is nil. When ctx ends, the error is the last answer, not that of a
// request that was cut off.
func until(ctx context.Context, ask func() (waits error, err error)) error {
	var last error
	for {
		waits, err := ask()
		switch {
		case err == nil && waits == nil:
			return nil
		case ctx.Err() != nil && last != nil:
			return last
		case err != nil:
			return err
		}
		last = waits
		select {
		case <-ctx.Done():
			return last
		case <-time.After(again):
		}
	}
}

// await returns when the node is Ready, or waits for a network plugin only: then it returns why.
// What the kubelet has said before a time does not count: that is of an earlier run.
func (m member) await(ctx context.Context, since time.Time) (waits string, err error) {
	since = since.Truncate(time.Second) // as the API's times are
	err = until(ctx, func() (error, error) {
		n, err := m.kube.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("node %s has not registered", m.Name), nil
		case err != nil:
			return m.unreachable(err), nil
		}
		for _, c := range n.Status.Conditions {
			if c.LastHeartbeatTime.Time.Before(since) {
				continue
			}
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil, nil
			}
			if c.Type == corev1.NodeReady && c.Reason == node.NoPlugin {
				waits = c.Message
				return nil, nil
			}
			if c.Type == corev1.NodeReady {
				return fmt.Errorf("node %s is not Ready: %s", m.Name, c.Message), nil
			}
		}
		return fmt.Errorf("node %s is not Ready: its kubelet has not said anything yet", m.Name), nil
	})
	return waits, err
}

// drain cordons the node, and evicts its pods but for those of DaemonSets and of static manifests,
// which belong to it. PodDisruptionBudgets are kept.
func (m member) drain(ctx context.Context) error {
	_, err := m.kube.CoreV1().Nodes().Patch(ctx, m.Name, types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true}}`),
		metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return m.unreachable(err)
	}
	return until(ctx, func() (error, error) {
		pods, err := m.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", m.Name).String(),
		})
		if err != nil {
			return nil, m.unreachable(err)
		}
		var waits error
		for i := range pods.Items {
			pod := &pods.Items[i]
			if staysWithNode(pod) {
				continue
			}
			if pod.DeletionTimestamp != nil {
				waits = cmp.Or(waits, fmt.Errorf("pod %s/%s has not ended yet", pod.Namespace, pod.Name))
				continue
			}
			err := m.kube.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
			})
			switch {
			case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // it has gone
			case err != nil:
				waits = fmt.Errorf("pod %s/%s stays: %w", pod.Namespace, pod.Name, err)
			case waits == nil:
				waits = fmt.Errorf("pod %s/%s has not ended yet", pod.Namespace, pod.Name)
			}
		}
		return waits, nil
	})
}

// staysWithNode says whether a pod ends only with its node.
func staysWithNode(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return pod.Annotations[corev1.MirrorPodAnnotationKey] != "" || owner != nil && owner.Kind == "DaemonSet" ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// check asks the API server whether unregister would succeed. With a webhook that does not do dry
// runs it cannot say.
func (m member) check(ctx context.Context) error {
	err := m.remove(ctx, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsBadRequest(err) {
		return nil
	}
	return err
}

// unregister deletes the node. Its kubelet must not run: it would register it again.
func (m member) unregister(ctx context.Context) error { return m.remove(ctx, metav1.DeleteOptions{}) }

func (m member) remove(ctx context.Context, o metav1.DeleteOptions) error {
	err := m.kube.CoreV1().Nodes().Delete(ctx, m.Name, o)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("node %s may not delete itself: an administrator does with 'kubectl delete node %[1]s': %w", m.Name, err)
	}
	return m.unreachable(err)
}

// unreachable leaves out of an error what the reader knows.
func (m member) unreachable(err error) error {
	var request *url.Error
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return fmt.Errorf("the certificate of the cluster at %s: %w; do the clocks of both machines agree?", m.Server, invalid)
	}
	if errors.As(err, &request) {
		return fmt.Errorf("the cluster at %s cannot be reached: %w", m.Server, request.Err)
	}
	return fmt.Errorf("the cluster at %s: %w", m.Server, err)
}
