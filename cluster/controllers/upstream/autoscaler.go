package upstream

import (
	"context"
	"time"

	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	usage "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/metrics/pkg/client/external_metrics"

	"github.com/coracle-project/coracle/cluster/client"
)

// Upstream's defaults (k8s.io/kubernetes/pkg/controller/podautoscaler/config/v1alpha1).
const (
	autoscaleEvery = 15 * time.Second
	// shrinkAfter is how long less has to be enough, unless the autoscaler says otherwise.
	shrinkAfter = 5 * time.Minute
	// tolerance is how far from its target a metric may be before anything is scaled.
	tolerance = 0.1
	// startUp is how long the CPU that a pod needs to start does not count, if it is not ready.
	startUp = 5 * time.Minute
	// firstReady is how long after its start a pod that is not ready counts as not yet ready.
	firstReady = 30 * time.Second
)

// NewAutoscaler returns the controller that scales by HorizontalPodAutoscalers, each looked at once
// in every, 0 being upstream's 15 seconds. It asks for metrics by the API: without a server for
// custom and external ones, an autoscaler's condition says so.
func NewAutoscaler(set *client.Set, mapper *Mapper, every time.Duration) *OnDemand {
	if every == 0 {
		every = autoscaleEvery
	}
	return &OnDemand{
		name: "horizontal-pod-autoscaler", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Autoscaling().V2().HorizontalPodAutoscalers().Informer(),
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			scales, err := mapper.scales(set)
			if err != nil {
				return nil, err
			}
			resources, err := usage.NewForConfig(set.Config)
			if err != nil {
				return nil, err
			}
			external, err := external_metrics.NewForConfig(set.Config)
			if err != nil {
				return nil, err
			}
			served := custom_metrics.NewAvailableAPIsGetter(set.Kube.Discovery())
			custom := custom_metrics.NewForConfig(set.Config, mapper, served)
			c := podautoscaler.NewHorizontalController(ctx, set.Kube.CoreV1(), scales, set.Kube.AutoscalingV2(), mapper,
				metrics.NewRESTMetricsClient(resources, custom, external), in.Autoscaling().V2().HorizontalPodAutoscalers(), in.Core().V1().Pods(),
				every, shrinkAfter, tolerance, startUp, firstReady)
			return with(
				func(ctx context.Context) { c.Run(ctx, workers) }, mapper.keep,
				func(ctx context.Context) { custom_metrics.PeriodicallyInvalidate(served, every, ctx.Done()) },
			), nil
		},
	}
}
