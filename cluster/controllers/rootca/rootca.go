// Package rootca publishes the certificate authority that verifies the API server as the ConfigMap
// kube-root-ca.crt of every active namespace, and puts it back when it is changed or deleted.
//
// It watches the ConfigMaps of that name only. What a namespace that is being deleted refuses is
// no error; everything else is repeated with the frame's back-off.
package rootca

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	upstream "k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
)

// Authority is what verifies the API server, PEM. It changes while the cluster's authority is
// replaced.
type Authority interface {
	dynamiccertificates.Notifier
	CurrentCABundleContent() []byte
}

// Fixed is an Authority that never changes.
type Fixed []byte

// CurrentCABundleContent implements Authority.
func (f Fixed) CurrentCABundleContent() []byte { return f }

// AddListener implements Authority.
func (Fixed) AddListener(dynamiccertificates.Listener) {}

// Changed is a listener of an Authority.
type Changed func()

// Enqueue implements dynamiccertificates.Listener.
func (f Changed) Enqueue() { f() }

type publisher struct {
	set        *client.Set
	ca         Authority
	namespaces corelisters.NamespaceLister
	informer   cache.SharedIndexInformer
	published  corelisters.ConfigMapLister
}

// New returns the controller that publishes ca; its keys are namespaces. What is published it reads
// with reader, since its own role only writes.
func New(set *client.Set, reader kubernetes.Interface, ca Authority) *frame.Controller {
	namespaces := set.Informers.Core().V1().Namespaces()
	published := coreinformers.NewFilteredConfigMapInformer(reader, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, upstream.RootCACertConfigMapName).String()
		})
	c := &publisher{
		set: set, ca: ca,
		namespaces: namespaces.Lister(), informer: published, published: corelisters.NewConfigMapLister(published.GetIndexer()),
	}
	f := frame.New("root-ca-certificate-publisher", 1, set.Logger(), c.sync)
	f.Watch(namespaces.Informer(), frame.Self)
	ca.AddListener(Changed(func() {
		all, _ := c.namespaces.List(labels.Everything()) // a lister has no errors
		for _, namespace := range all {
			f.Add(namespace.Name)
		}
	}))
	feed.Own(f, published, func(obj any) []string {
		if m, ok := obj.(*corev1.ConfigMap); ok && m.Name == upstream.RootCACertConfigMapName {
			return []string{m.Namespace}
		}
		return nil
	})
	return f
}

func (c *publisher) sync(ctx context.Context, namespace string) error {
	ns, err := c.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == corev1.NamespaceTerminating {
		return nil
	}
	if err != nil {
		return err
	}
	if !feed.Synced(ctx, c.informer.HasSyncedChecker()) {
		return ctx.Err()
	}
	data := map[string]string{"ca.crt": string(c.ca.CurrentCABundleContent())}
	there, err := c.published.ConfigMaps(namespace).Get(upstream.RootCACertConfigMapName)
	switch {
	case apierrors.IsNotFound(err):
		_, err = c.set.Kube.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: upstream.RootCACertConfigMapName,
				Annotations: map[string]string{upstream.DescriptionAnnotation: upstream.Description},
			},
			Data: data,
		}, metav1.CreateOptions{})
	case err == nil && (!maps.Equal(there.Data, data) || there.Annotations[upstream.DescriptionAnnotation] == ""):
		there = there.DeepCopy()
		there.Data = data
		metav1.SetMetaDataAnnotation(&there.ObjectMeta, upstream.DescriptionAnnotation, upstream.Description)
		_, err = c.set.Kube.CoreV1().ConfigMaps(namespace).Update(ctx, there, metav1.UpdateOptions{})
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // an event of the ConfigMap or of the namespace is on its way
	}
	return err
}
