package state

import "strings"

// Fits says whether f chooses the pod; half-made and half-removed ones never fit.
func (f *PodFilter) Fits(r *PodRecord) bool {
	return r.Visible() && strings.HasPrefix(r.ID, f.ID) &&
		(f.State == "" || f.State == r.state()) &&
		hasLabels(r.Config.Labels, f.Labels)
}

// Fits says whether f chooses the container; half-made and half-removed ones never fit.
func (f *ContainerFilter) Fits(r *ContainerRecord) bool {
	return r.Visible() && strings.HasPrefix(r.ID, f.ID) && strings.HasPrefix(r.PodID, f.PodID) &&
		(f.State == "" || f.State == r.state()) &&
		hasLabels(r.Config.Labels, f.Labels)
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}
