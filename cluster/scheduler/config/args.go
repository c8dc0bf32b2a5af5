package config

import (
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins"
)

// pluginArgs returns a profile's settings of plugins. Upstream's validation has seen nearly all.
func pluginArgs(path string, p *config.KubeSchedulerProfile, extenders []config.Extender) (plugins.Args, error) {
	var args plugins.Args
	var errs []error
	for i, c := range p.PluginConfig {
		if err := setArgs(&args, fmt.Sprintf("%s.pluginConfig[%d]", path, i), c); err != nil {
			errs = append(errs, err)
		}
	}
	for _, e := range extenders {
		for _, r := range e.ManagedResources {
			if r.IgnoredByScheduler {
				args.Ignored = append(args.Ignored, v1.ResourceName(r.Name))
			}
		}
	}
	return args, errors.Join(errs...)
}

func setArgs(args *plugins.Args, place string, c config.PluginConfig) error {
	switch a := c.Args.(type) {
	case *config.NodeResourcesFitArgs:
		return nodeResourcesFit(args, place, a)
	case *config.NodeResourcesBalancedAllocationArgs:
		return balanced(place, a)
	case *config.InterPodAffinityArgs:
		args.HardAffinityWeight, args.IgnorePreferred = &a.HardPodAffinityWeight, a.IgnorePreferredTermsOfExistingPods
	case *config.NodeAffinityArgs:
		args.AddedAffinity = a.AddedAffinity
	case *config.PodTopologySpreadArgs:
		if a.DefaultingType == config.ListDefaulting {
			args.Spread = &a.DefaultConstraints
		}
	case *config.DefaultPreemptionArgs:
		args.Preemption.Candidates, args.Preemption.Percent = &a.MinCandidateNodesAbsolute, &a.MinCandidateNodesPercentage
	case *config.VolumeBindingArgs:
		wait := time.Duration(a.BindTimeoutSeconds) * time.Second
		args.BindVolumes = &wait
	case *config.DynamicResourcesArgs:
		if a.FilterTimeout != nil {
			args.FindDevices = &a.FilterTimeout.Duration
		}
		if a.BindingTimeout != nil {
			args.PrepareDevices = &a.BindingTimeout.Duration
		}
	default:
		return fmt.Errorf("%s: plugin %q has no settings, or does not exist: remove it", place, c.Name)
	}
	return nil
}

func nodeResourcesFit(args *plugins.Args, place string, a *config.NodeResourcesFitArgs) error {
	// Upstream validates these when it makes the plugin.
	if err := validation.ValidateNodeResourcesFitArgs(field.NewPath(place+".args"), a); err != nil {
		return err
	}
	for _, name := range a.IgnoredResources {
		args.Ignored = append(args.Ignored, v1.ResourceName(name))
	}
	args.IgnoredGroups = a.IgnoredResourceGroups
	if a.ScoringStrategy == nil {
		return nil
	}
	for _, r := range a.ScoringStrategy.Resources {
		args.Resources = append(args.Resources, plugins.ResourceWeight{Name: v1.ResourceName(r.Name), Weight: r.Weight})
	}
	switch s := a.ScoringStrategy; s.Type {
	case config.MostAllocated:
		args.Packing = true
	case config.RequestedToCapacityRatio:
		for _, p := range s.RequestedToCapacityRatio.Shape {
			score := int64(p.Score) * (framework.MaxScore / config.MaxCustomPriorityScore)
			args.Shape = append(args.Shape, plugins.ShapePoint{Used: int64(p.Utilization), Score: score})
		}
	}
	return nil
}

// balanced refuses other resources than CPU and memory.
func balanced(place string, a *config.NodeResourcesBalancedAllocationArgs) error {
	for i, r := range a.Resources {
		if name := v1.ResourceName(r.Name); name != v1.ResourceCPU && name != v1.ResourceMemory {
			return fmt.Errorf("%s.args.resources[%d]: only cpu and memory are balanced: remove %s", place, i, r.Name)
		}
	}
	if len(a.Resources) == 1 {
		return fmt.Errorf("%s.args.resources: one resource alone cannot be balanced: name cpu and memory, or disable the plugin", place)
	}
	return nil
}
