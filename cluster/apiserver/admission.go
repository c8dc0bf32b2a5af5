package apiserver

import (
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	controlplaneadmission "k8s.io/kubernetes/pkg/controlplane/apiserver/admission"
	certapproval "k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	certsigning "k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	certsubject "k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	podpriority "k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	volumeresize "k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	inuse "k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"

	"github.com/coracle-project/coracle/cluster/unserved"
)

// remapEvery is how often admission forgets what it knows of discovery (upstream's value).
const remapEvery = 30 * time.Second

// admissionPlugins are run in this order, which is upstream's: what changes objects first, quota
// last. Of upstream's default plugins those are missing that concern what is not served
// (ClusterTrustBundles, PodGroups).
var admissionPlugins = []struct {
	name     string
	register func(*admission.Plugins)
}{
	{lifecycle.PluginName, lifecycle.Register},
	{limitranger.PluginName, limitranger.Register},
	{serviceaccount.PluginName, serviceaccount.Register},
	{noderestriction.PluginName, noderestriction.Register},
	{ownNodePlugin, registerOwnNode},
	{nodetaint.PluginName, nodetaint.Register},
	{podsecurity.PluginName, podsecurity.Register},
	{podpriority.PluginName, podpriority.Register},
	{defaulttolerationseconds.PluginName, defaulttolerationseconds.Register},
	{setdefault.PluginName, setdefault.Register},
	{inuse.PluginName, inuse.Register},
	{volumeresize.PluginName, volumeresize.Register},
	{runtimeclass.PluginName, runtimeclass.Register},
	{certapproval.PluginName, certapproval.Register},
	{certsigning.PluginName, certsigning.Register},
	{certsubject.PluginName, certsubject.Register},
	{defaultingressclass.PluginName, defaultingressclass.Register},
	{podtopologylabels.PluginName, podtopologylabels.Register},
	{nodedeclaredfeatures.PluginName, nodedeclaredfeatures.Register},
	{podresize.PluginName, podresize.Register},
	{unservedPlugin, registerUnserved},
	{mutatingpolicy.PluginName, mutatingpolicy.Register},
	{mutatingwebhook.PluginName, mutatingwebhook.Register},
	{validatingpolicy.PluginName, validatingpolicy.Register},
	{validatingwebhook.PluginName, validatingwebhook.Register},
	{resourcequota.PluginName, resourcequota.Register},
}

// pluginConfig gives every plugin its defaults, but for the level of pods' security.
type pluginConfig struct{ podSecurity string }

// ConfigFor implements admission.ConfigProvider.
func (c pluginConfig) ConfigFor(plugin string) (io.Reader, error) {
	if plugin != podsecurity.PluginName || c.podSecurity == "" {
		return nil, nil
	}
	return strings.NewReader(podSecurityConfig(c.podSecurity)), nil
}

// admission puts the admission plugins into the server's configuration.
func (b *build) admission(resolver webhook.ServiceResolver) error {
	client, err := kubernetes.NewForConfig(b.loopback)
	if err != nil {
		return err
	}
	anything, err := dynamic.NewForConfig(b.loopback)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(client.Discovery()))
	prompt := newPromptInformers(b.informers)
	initializers := admission.PluginInitializers{
		initializer.NewAPIServerIDInitializer(b.config.APIServerID),
		initializer.New(client, anything, prompt, b.config.Authorization.Authorizer, utilfeature.DefaultFeatureGate,
			b.config.EffectiveVersion, b.config.DrainedNotify(), mapper),
	}
	more, err := (&controlplaneadmission.Config{
		LoopbackClientConfig: b.loopback, ExternalInformers: prompt, APIResourceConfig: b.served,
	}).New(b.proxy, nil, resolver, b.config.TracerProvider)
	if err != nil {
		return err
	}
	initializers = append(append(initializers, more...), unservedKinds(unserved.With(b.options.Unserved)),
		webhookinit.NewPluginInitializer(limitWebhooks, resolver)) // on top of the wrapper in more

	plugins := admission.NewPlugins()
	names := make([]string, 0, len(admissionPlugins))
	for _, p := range admissionPlugins {
		p.register(plugins)
		names = append(names, p.name)
	}
	gate := &admissionGate{ready: make(chan struct{})}
	chain, err := plugins.NewFromPlugins(names, pluginConfig{b.options.PodSecurity}, initializers,
		admission.Decorators{admission.DecoratorFunc(gate.add)})
	if err != nil {
		return err
	}
	var ok bool
	if gate.chain, ok = admissionmetrics.WithStepMetrics(chain).(admissionChain); !ok {
		return fmt.Errorf("the admission chain is a %T, which does not both change and validate", chain)
	}
	b.config.AdmissionControl, b.gate = gate, gate
	return b.config.AddPostStartHook("start-apiserver-admission-initializer", func(ctx genericapiserver.PostStartHookContext) error {
		mapper.Reset()
		go wait.Until(mapper.Reset, remapEvery, ctx.Done())
		return nil
	})
}
