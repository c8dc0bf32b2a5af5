package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/informers"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"

	"github.com/coracle-project/coracle/cluster/scheduler"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins"
)

// offHere are plugins of upstream's that are off by default there, or that do nothing then. That a
// file disables them is not wrong.
var offHere = []string{"GangScheduling", "TopologyPlacementGenerator", "PodGroupPodsCount", "*"}

// placed is a plugin at a point of a profile.
type placed struct {
	name   string
	at     framework.Point
	weight int64
}

// profiles adds the file's profiles to o.
func profiles(o *scheduler.Options, c *config.KubeSchedulerConfiguration, said *configv1.KubeSchedulerConfiguration) error {
	o.Profiles, o.Percentages = make(map[string]func(*framework.Handle) []framework.Enabled), make(map[string]int)
	for i := range c.Profiles {
		p, path := &c.Profiles[i], fmt.Sprintf("profiles[%d]", i)
		var own configv1.KubeSchedulerProfile // none if there is only the default one
		if i < len(said.Profiles) {
			own = said.Profiles[i]
		}
		args, err := pluginArgs(path, p, c.Extenders)
		if err != nil {
			return err
		}
		known := make(map[string]framework.Plugin)
		for _, e := range plugins.Default(&framework.Handle{Informers: informers.NewSharedInformerFactory(nil, 0)}, args) {
			known[e.Name()] = e.Plugin
		}
		if err := named(path, &own, known); err != nil {
			return err
		}
		places, err := layout(path, p.Plugins, known)
		if err != nil {
			return err
		}
		o.Profiles[p.SchedulerName] = func(h *framework.Handle) []framework.Enabled { return enabled(h, args, places) }
		if p.PercentageOfNodesToScore != nil {
			o.Percentages[p.SchedulerName] = int(*p.PercentageOfNodesToScore)
		}
	}
	return nil
}

func enabled(h *framework.Handle, args plugins.Args, places []placed) []framework.Enabled {
	args.NoDevices = !allocates(places)
	made := make(map[string]framework.Plugin)
	for _, e := range plugins.Default(h, args) {
		made[e.Name()] = e.Plugin
	}
	list := make([]framework.Enabled, len(places))
	for i, p := range places {
		list[i] = framework.Enabled{Plugin: made[p.name], At: p.at, Weight: p.weight}
	}
	return list
}

// allocates reports whether the profile gives pods the devices that they need, from finding them to
// writing the claims.
func allocates(places []placed) bool {
	for _, at := range []framework.Point{framework.AtFilter, framework.AtReserve, framework.AtPreBind} {
		if !slices.ContainsFunc(places, func(p placed) bool { return p.name == dynamicresources.Name && p.at == at }) {
			return false
		}
	}
	return true
}

// sets are the sets of plugins that a file has, by name.
func sets(p *configv1.Plugins) map[string]configv1.PluginSet {
	return map[string]configv1.PluginSet{
		"multiPoint": p.MultiPoint, "preEnqueue": p.PreEnqueue, "queueSort": p.QueueSort, "preFilter": p.PreFilter, "filter": p.Filter,
		"postFilter": p.PostFilter, "preScore": p.PreScore, "score": p.Score, "reserve": p.Reserve, "permit": p.Permit,
		"preBind": p.PreBind, "bind": p.Bind, "postBind": p.PostBind,
		"placementGenerate": p.PlacementGenerate, "placementScore": p.PlacementScore,
	}
}

// named refuses plugins that do not exist here, and points at which none is asked.
func named(path string, said *configv1.KubeSchedulerProfile, known map[string]framework.Plugin) error {
	if said.Plugins == nil {
		return nil
	}
	var errs []error
	missing := func(place, name string) {
		errs = append(errs, fmt.Errorf("%s: there is no plugin %q: choose among %s", place, name,
			strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
	}
	all := sets(said.Plugins)
	for _, point := range slices.Sorted(maps.Keys(all)) {
		set, place := all[point], path+".plugins."+point
		if strings.HasPrefix(point, "placement") && len(set.Enabled) > 0 {
			errs = append(errs, fmt.Errorf("%s.enabled[0]: groups of pods are not scheduled as one: remove %s", place, point))
			continue
		}
		for i, p := range set.Enabled {
			at := fmt.Sprintf("%s.enabled[%d]", place, i)
			switch plugin, ok := known[p.Name]; {
			case !ok:
				missing(at, p.Name)
			case point != "multiPoint" && !framework.Implements(plugin, framework.Point(point)):
				errs = append(errs, fmt.Errorf("%s: plugin %s has nothing to say there: remove it", at, p.Name))
			case p.Weight != nil && *p.Weight < 0:
				errs = append(errs, fmt.Errorf("%s: weight %d is below 0", at, *p.Weight))
			}
		}
		for i, p := range set.Disabled {
			if known[p.Name] == nil && !slices.Contains(offHere, p.Name) {
				missing(fmt.Sprintf("%s.disabled[%d]", place, i), p.Name)
			}
		}
	}
	return errors.Join(errs...)
}

// layout says which plugins are asked at which points, in upstream's order: those of multiPoint
// that the point names itself, the others of multiPoint, and then those that only the point names.
func layout(path string, p *config.Plugins, known map[string]framework.Plugin) ([]placed, error) {
	var all []placed
	for _, point := range []struct {
		at  framework.Point
		set config.PluginSet
	}{
		{framework.AtPreEnqueue, p.PreEnqueue},
		{framework.AtQueueSort, p.QueueSort},
		{framework.AtPreFilter, p.PreFilter},
		{framework.AtFilter, p.Filter},
		{framework.AtPostFilter, p.PostFilter},
		{framework.AtPreScore, p.PreScore},
		{framework.AtScore, p.Score},
		{framework.AtReserve, p.Reserve},
		{framework.AtPermit, p.Permit},
		{framework.AtPreBind, p.PreBind},
		{framework.AtBind, p.Bind},
		{framework.AtPostBind, p.PostBind},
	} {
		var again, multi, own []placed
		has := func(list []config.Plugin, name string) bool {
			return slices.ContainsFunc(list, func(e config.Plugin) bool { return e.Name == name })
		}
		for _, e := range point.set.Enabled {
			place := placed{e.Name, point.at, weight(e)}
			if has(p.MultiPoint.Enabled, e.Name) && !has(point.set.Disabled, "*") {
				again = append(again, place)
			} else {
				own = append(own, place)
			}
		}
		for _, e := range p.MultiPoint.Enabled {
			if known[e.Name] != nil && framework.Implements(known[e.Name], point.at) &&
				!has(point.set.Enabled, e.Name) && !has(point.set.Disabled, e.Name) && !has(point.set.Disabled, "*") {
				multi = append(multi, placed{e.Name, point.at, weight(e)})
			}
		}
		all = slices.Concat(all, again, multi, own)
	}
	return all, whole(path, all, known)
}

// weight is 1 unless it is said.
func weight(e config.Plugin) int64 {
	if e.Weight == 0 {
		return 1
	}
	return int64(e.Weight)
}

// needed says at which earlier point a plugin works out what it needs at a later one.
var needed = map[framework.Point]framework.Point{
	framework.AtFilter: framework.AtPreFilter, framework.AtReserve: framework.AtPreFilter, framework.AtPreBind: framework.AtReserve,
	framework.AtScore: framework.AtPreScore,
}

// whole refuses half of a plugin: without the earlier points it cannot work at the later ones.
func whole(path string, all []placed, known map[string]framework.Plugin) error {
	for _, p := range all {
		before := needed[p.at]
		if p.name == dynamicresources.Name && p.at == framework.AtScore {
			before = framework.AtPreFilter // its score is of what it found there
		}
		if before == "" || !framework.Implements(known[p.name], before) {
			continue
		}
		if !slices.ContainsFunc(all, func(o placed) bool { return o.name == p.name && o.at == before }) {
			return fmt.Errorf("%s.plugins.%s: plugin %s works at %s only if it is enabled there, too: enable it, or disable it at %s", path, before,
				p.name, p.at, p.at)
		}
	}
	for _, at := range []framework.Point{framework.AtQueueSort, framework.AtBind} {
		if !slices.ContainsFunc(all, func(p placed) bool { return p.at == at }) {
			return fmt.Errorf("%s.plugins.%s: no plugin is enabled there: enable one", path, at)
		}
	}
	return nil
}
