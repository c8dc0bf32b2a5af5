package credentials

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/pki"
)

// AuthorityAnnotation is the annotation of a Node with the hash of the authority that the node
// trusts and that has signed its certificates.
const AuthorityAnnotation = "coracle.dev/authority"

// mostAuthorities bounds what is published: the newest authority, the one before, and what that
// certifies.
const mostAuthorities = 8

// Follower keeps the node's authority like the cluster's: it takes a new one that the former one
// certifies, then gets certificates of it, and then annotates the Node. Each step is found undone
// and is taken when the agent starts again.
type Follower struct {
	*frame.Controller
	node     Node
	set      *client.Set
	keeper   *Keeper
	informer cache.SharedIndexInformer
	// replacing is the authority whose certificates the keeper asks for.
	replacing *x509.Certificate
}

const authorityKey = "authority" // the only one

// Follow returns what follows the authority. It asks for an informer and makes no call.
func (n Node) Follow(set *client.Set, keeper *Keeper) *Follower {
	f := &Follower{node: n, set: set, keeper: keeper}
	f.informer = coreinformers.NewFilteredConfigMapInformer(set.Kube, metav1.NamespaceSystem, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, clusterinfo.AgentConfigMap).String()
		})
	f.Controller = frame.New("authority", 1, set.Logger(), func(ctx context.Context, _ string) error { return f.sync(ctx) })
	f.Watch(f.informer, func(any) []string { return []string{authorityKey} })
	f.Watch(set.Informers.Core().V1().Nodes().Informer(), func(obj any) []string {
		if o, ok := obj.(*corev1.Node); ok && o.Name == n.Name && o.Annotations[AuthorityAnnotation] == "" {
			return []string{authorityKey} // it was registered
		}
		return nil
	})
	return f
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	stopped := make(chan struct{})
	go func() { defer close(stopped); f.informer.RunWithContext(ctx) }()
	f.Controller.Run(ctx)
	<-stopped
	return nil
}

func (f *Follower) sync(ctx context.Context) error {
	object, err := corelisters.NewConfigMapLister(f.informer.GetIndexer()).ConfigMaps(metav1.NamespaceSystem).Get(clusterinfo.AgentConfigMap)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	published, err := clusterinfo.Authority(object)
	if err != nil || len(published) == 0 { // an older release publishes none
		return err
	}
	have, err := os.ReadFile(f.node.CAFile())
	if err != nil {
		return err
	}
	all, err := successors(have, published)
	if err != nil {
		f.Log.Error("the cluster publishes an authority that this node does not take", "err", err)
		return nil // another one is an event
	}
	newest := all[0]
	if ca := encode(all); !bytes.Equal(ca, have) {
		if err := pki.Replace(f.node.CAFile(), ca, 0o644); err != nil {
			return err
		}
		f.Log.Info("the node trusts the cluster's authorities", "newest", newest.Subject.CommonName, "count", len(all))
	}
	if f.node.issuedBy(newest) {
		// Before the annotation, which lets the trust in the former authority end: connections that
		// show a certificate of it would be refused from then on.
		if err := f.node.reload(); err != nil {
			return fmt.Errorf("the node's new certificate: %w", err)
		}
		return f.annotate(ctx, newest)
	}
	if f.replacing != nil && f.replacing.Equal(newest) {
		return nil // the keeper tells when a certificate is written
	}
	if err := f.keeper.replace(newest, func() { f.Add(authorityKey) }); err != nil {
		return err
	}
	f.replacing = newest
	return nil
}

// issuedBy says whether the node has both certificates of an authority.
func (n Node) issuedBy(newest *x509.Certificate) bool {
	for _, file := range []string{n.clientFile(), n.servingFile()} {
		if c, err := n.pair(file).Current(); err != nil || c.Leaf.CheckSignatureFrom(newest) != nil {
			return false
		}
	}
	return true
}

func (f *Follower) annotate(ctx context.Context, newest *x509.Certificate) error {
	hash, err := discovery.Hash(pki.Encode(newest))
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{AuthorityAnnotation: hash}}})
	if err != nil {
		return err
	}
	_, err = f.set.Kube.CoreV1().Nodes().Patch(ctx, f.node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) { // its registration is an event
		return nil
	}
	return err
}

// successors returns the published authorities that a node with the authorities have accepts: those
// in have, and those that one of them certifies. The newest has to be one of them.
func successors(have, published []byte) ([]*x509.Certificate, error) {
	trusted, err := cert.ParseCertsPEM(have)
	if err != nil {
		return nil, fmt.Errorf("the node's authority: %w", err)
	}
	all, err := cert.ParseCertsPEM(published)
	if err != nil {
		return nil, err
	}
	if len(all) > mostAuthorities {
		return nil, fmt.Errorf("it has %d certificates, and may have %d", len(all), mostAuthorities)
	}
	var next []*x509.Certificate
	for i, root := range all {
		if !root.IsCA || root.CheckSignatureFrom(root) != nil {
			if i == 0 {
				return nil, fmt.Errorf("%s is no authority", root.Subject.CommonName)
			}
			continue // what another one certifies
		}
		known := slices.ContainsFunc(append(slices.Clone(all), trusted...), func(c *x509.Certificate) bool {
			return sameAuthority(c, root) && slices.ContainsFunc(trusted, func(t *x509.Certificate) bool {
				return sameAuthority(t, root) || c.IsCA && c.CheckSignatureFrom(t) == nil
			})
		})
		if known {
			next = append(next, root)
		} else if i == 0 {
			return nil, errors.New("no authority that the node trusts certifies it; if it is the cluster's, leave and join again")
		}
	}
	return next, nil
}

// sameAuthority is whether both certificates are of one name and key.
func sameAuthority(a, b *x509.Certificate) bool {
	return bytes.Equal(a.RawSubject, b.RawSubject) && bytes.Equal(a.RawSubjectPublicKeyInfo, b.RawSubjectPublicKeyInfo)
}

func encode(all []*x509.Certificate) (text []byte) {
	for _, c := range all {
		text = append(text, pki.Encode(c)...)
	}
	return text
}
