package pod

import "strings"

func (f *PodFilter) fits(p *Pod) bool {
	return strings.HasPrefix(p.ID, f.ID) &&
		(f.State == "" || f.State == p.State) &&
		hasLabels(p.Config.Labels, f.Labels)
}

func (f *ContainerFilter) fits(c *Container) bool {
	return strings.HasPrefix(c.ID, f.ID) && strings.HasPrefix(c.PodID, f.PodID) &&
		(f.State == "" || f.State == c.State) &&
		hasLabels(c.Config.Labels, f.Labels)
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}
