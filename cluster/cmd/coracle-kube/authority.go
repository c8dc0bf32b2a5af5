package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/kubernetes/pkg/util/node"

	"github.com/coracle-project/coracle/cluster/node/controlplane"
	"github.com/coracle-project/coracle/cluster/node/credentials"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/pki"
)

const (
	// lagEvery is the time between two looks at the nodes, and the first may always take firstLook.
	// lagLimit bounds a connection to one, and lagAtOnce is how many are made at once.
	lagEvery  = time.Second
	firstLook = 10 * time.Second
	lagLimit  = 5 * time.Second
	lagAtOnce = 16
	// mostNamed bounds how many nodes an answer names.
	mostNamed = 20
	// mostSaid bounds what it says of one.
	mostSaid = 500
)

// rotation replaces credentials of the cluster in a directory.
type rotation struct {
	dir string
	// socket is where the cluster process is asked to do it.
	socket string
}

// rotate notes what is to be made again, and has the cluster process do it.
func (r rotation) rotate(ctx context.Context, what pki.What) (rotated, error) {
	noted := time.Now()
	before, err := pki.Hold(r.dir, what)
	if err != nil {
		return rotated{}, err
	}
	if err := pki.Rotate(r.dir, what); err != nil {
		return rotated{}, err
	}
	running, err := renewNow(ctx, r.socket)
	if err != nil {
		return rotated{}, fmt.Errorf("the rotation is noted, and not finished: %w; the cluster tries again within a day, and when it is started", err)
	}
	if !running {
		return rotated{}, nil
	}
	after, err := pki.Hold(r.dir, what)
	if err != nil {
		return rotated{}, err
	}
	if kept := before.Kept(after, noted); len(kept) > 0 {
		return rotated{}, fmt.Errorf("the cluster process has not replaced %s, because the clock was set back, or was ahead when they were made: "+
			"correct the clock, and repeat this", strings.Join(kept, ", "))
	}
	return rotated{Running: true}, nil
}

// replaceAuthority makes another authority, which signs at once, and waits until the nodes follow.
// If one was made before, it only waits.
func (r rotation) replaceAuthority(ctx context.Context, wait time.Duration) (rotated, error) {
	kube, err := r.client()
	if err != nil {
		return rotated{}, err
	}
	if err := uninvited(ctx, kube); err != nil {
		return rotated{}, err
	}
	answer, err := r.rotate(ctx, pki.What{Authority: true})
	if err != nil || !answer.Running {
		return answer, err
	}
	if err := r.check(true); err != nil {
		return rotated{}, err
	}
	if kube, err = r.client(); err != nil { // by the new authority
		return rotated{}, err
	}
	if err := uninvited(ctx, kube); err != nil { // made meanwhile
		return rotated{}, err
	}
	answer.Lagging, err = r.await(ctx, wait)
	return answer, err
}

// uninvited returns an error if a machine may become a control-plane node with keys of before.
func uninvited(ctx context.Context, kube kubernetes.Interface) error {
	invited, err := controlplane.Invited(ctx, kube)
	if err != nil {
		return fmt.Errorf("the cluster has to run while its authority is replaced: %w", err)
	}
	if invited {
		return errors.New("a token for another control-plane node has the key of the authority: delete it with 'coracle token delete', " +
			"and repeat this")
	}
	return nil
}

// await returns the nodes that do not follow after some time. That is also the answer to an
// operator who stops waiting.
func (r rotation) await(ctx context.Context, wait time.Duration) ([]string, error) {
	return awaitNone(ctx, wait, r.lagging)
}

// awaitNone looks until lagging returns no nodes, and returns those of the last look after some
// time. The first look may take longer than that: without it no node could be named.
func awaitNone(ctx context.Context, wait time.Duration, lagging func(context.Context) ([]string, error)) (last []string, err error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	look, stop := context.WithTimeout(ctx, max(wait, firstLook))
	defer stop()
	for {
		now, err := lagging(look)
		switch {
		case err == nil && len(now) == 0:
			return nil, nil
		case look.Err() != nil && last != nil: // this look was cut off
			return last, nil
		case err != nil:
			return nil, err
		}
		last = now
		select {
		case <-time.After(lagEvery):
		case <-waiting.Done():
			return last, nil
		}
		look = waiting
	}
}

// check returns an error unless the cluster process has done what was noted: a former authority is
// trusted or not.
func (r rotation) check(former bool) error {
	s, err := pki.ReadSuccession(r.dir)
	if err == nil && s.Unfinished != former {
		err = errors.New("the cluster process has changed nothing, because the clock was set back, or the authority was made while the clock was " +
			"ahead: correct the clock, and repeat this")
	}
	return err
}

// finish ends the trust in the former authority, if all nodes follow the newest.
func (r rotation) finish(ctx context.Context) (rotated, error) {
	s, err := pki.ReadSuccession(r.dir)
	if err != nil {
		return rotated{}, err
	}
	if s.Unfinished {
		lagging, err := r.lagging(ctx)
		if err != nil {
			return rotated{}, fmt.Errorf("whether all nodes follow the new authority cannot be seen: %w", err)
		}
		if len(lagging) > 0 {
			return rotated{Running: true, Lagging: lagging}, nil
		}
	}
	answer, err := r.rotate(ctx, pki.What{DropFormer: true})
	if err != nil || !answer.Running {
		return answer, err
	}
	return answer, r.check(false)
}

// client is an administrator's, of the kubeconfig as it is now.
func (r rotation) client() (*kubernetes.Clientset, error) {
	_, kube, err := clientOf(filepath.Join(r.dir, "admin.kubeconfig"), callLimit)
	return kube, err
}

func (r rotation) lagging(ctx context.Context) ([]string, error) {
	s, err := pki.ReadSuccession(r.dir)
	if err != nil {
		return nil, err
	}
	kube, err := r.client()
	if err != nil {
		return nil, err
	}
	own := func(node string) bool { return pki.HasNode(r.dir, node, s.Newest) }
	return lagging(ctx, kube, s.Newest, own, new(net.Dialer).DialContext)
}

// dial connects to a kubelet: tests have theirs on loopback addresses, which no node may have.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// lagging returns the nodes that do not follow the authority newest, and why. Nodes that use
// the cluster process's own credentials follow automatically.
func lagging(ctx context.Context, kube kubernetes.Interface, newest *x509.Certificate, own func(node string) bool, to dial,
) ([]string, error) {
	hash, err := discovery.Hash(pki.Encode(newest))
	if err != nil {
		return nil, err
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	why := make([]string, len(nodes.Items))
	var work errgroup.Group
	work.SetLimit(lagAtOnce)
	for i := range nodes.Items {
		n := &nodes.Items[i]
		switch {
		case own(n.Name):
		case n.Annotations[credentials.AuthorityAnnotation] != hash:
			why[i] = n.Name + ": it has not taken the new authority" + notReady(n)
		default: // it says so
			work.Go(func() error {
				if err := serves(ctx, n, newest, to); err != nil {
					why[i] = fmt.Sprintf("%s: its kubelet shows no certificate of the new authority: %v", n.Name, err)
				}
				return nil
			})
		}
	}
	_ = work.Wait() // errors are in why
	why = slices.DeleteFunc(why, func(s string) bool { return s == "" })
	for i := range why {
		why[i] = printable(why[i])
	}
	slices.SortFunc(why, cmp.Compare[string])
	if more := len(why) - mostNamed; more > 0 {
		why = append(why[:mostNamed], fmt.Sprintf("and %d more", more))
	}
	return why, nil
}

// printable is text for a terminal: nodes choose what their certificates say.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
	if runes := []rune(text); len(runes) > mostSaid {
		return string(runes[:mostSaid]) + "..."
	}
	return text
}

func notReady(n *corev1.Node) string {
	if nodeutil.IsNodeReady(n) {
		return ""
	}
	return ", and is not ready"
}

// serves returns an error unless a node's kubelet shows a certificate that newest itself has
// signed.
func serves(ctx context.Context, n *corev1.Node, newest *x509.Certificate, to dial) error {
	addresses, err := nodeaddr.InternalIPs(n)
	if len(addresses) == 0 {
		return cmp.Or(err, errors.New("it has no address"))
	}
	roots := x509.NewCertPool()
	roots.AddCert(newest)
	ctx, cancel := context.WithTimeout(ctx, lagLimit)
	defer cancel()
	port := strconv.Itoa(int(n.Status.DaemonEndpoints.KubeletEndpoint.Port))
	plain, err := to(ctx, "tcp", net.JoinHostPort(addresses[0].String(), port))
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }()
	conn := tls.Client(plain, &tls.Config{RootCAs: roots, ServerName: addresses[0].String(), MinVersion: tls.VersionTLS12})
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	shown := conn.ConnectionState().PeerCertificates[0]
	if name := "system:node:" + n.Name; shown.Subject.CommonName != name {
		return fmt.Errorf("it is %s's, not %s's", shown.Subject.CommonName, name)
	}
	return shown.CheckSignatureFrom(newest)
}
