package upstream

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/pkg/controller/bootstrap"

	"github.com/coracle-project/coracle/cluster/client"
)

// signAgain is how often the signatures are looked at without an event: upstream's controller does
// not repeat an update that failed.
const signAgain = time.Minute

// BootstrapSigner signs the ConfigMap cluster-info with each bootstrap token, so that a machine
// that has a token recognizes its cluster. It starts with the first token, or with a signature of
// one that was deleted while no controller worked.
type BootstrapSigner struct {
	tokens, info informers.SharedInformerFactory
	signer       *OnDemand
}

// NewBootstrapSigner returns the controller. It watches no Secrets but bootstrap tokens, and no
// ConfigMap but that one.
func NewBootstrapSigner(set *client.Set) *BootstrapSigner {
	only := func(namespace, field, value string, resync time.Duration) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(set.Kube, resync, informers.WithNamespace(namespace),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = fields.OneTermEqualSelector(field, value).String() }))
	}
	b := &BootstrapSigner{
		tokens: only(metav1.NamespaceSystem, "type", string(bootstrapapi.SecretTypeBootstrapToken), 0),
		// An informer whose factory has no period ignores those of its handlers.
		info: only(metav1.NamespacePublic, metav1.ObjectNameField, bootstrapapi.ConfigMapClusterInfo, signAgain),
	}
	b.signer = &OnDemand{
		name: "bootstrap-signer", log: set.Logger(), informers: b.info, trigger: b.tokens.Core().V1().Secrets().Informer(),
		also:  []cache.SharedIndexInformer{b.info.Core().V1().ConfigMaps().Informer()},
		needs: needsSigner,
		make: func(_ context.Context, info *gate) (func(context.Context), error) {
			o := bootstrap.DefaultSignerOptions()
			o.ConfigMapResync = signAgain
			tokens := newGate(b.tokens)
			c, err := bootstrap.NewSigner(set.Kube, tokens.Core().V1().Secrets(), info.Core().V1().ConfigMaps(), o)
			if err != nil {
				tokens.remove()
				return nil, err
			}
			tokens.open()
			return func(ctx context.Context) {
				defer tokens.remove()
				c.Run(ctx)
			}, nil
		},
	}
	return b
}

// needsSigner says whether there is something to sign with, or a signature to look at.
func needsSigner(object any) bool {
	info, ok := object.(*corev1.ConfigMap)
	if !ok {
		return true
	}
	for key := range info.Data {
		if strings.HasPrefix(key, bootstrapapi.JWSSignatureKeyPrefix) {
			return true
		}
	}
	return false
}

// Run works until ctx ends.
func (b *BootstrapSigner) Run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	b.tokens.Start(ctx.Done())
	b.info.Start(ctx.Done())
	b.signer.Run(ctx)
	stop()
	b.tokens.Shutdown()
	b.info.Shutdown()
}
