package testkit

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// constrain gives pod some of all the ways to say where it wants to be.
func (r *Random) constrain(pod *v1.Pod) {
	spec := &pod.Spec
	for range 2 {
		if r.chance(25) {
			spec.Tolerations = append(spec.Tolerations, v1.Toleration{
				Key:      pick(r, "", "k1", "k2", v1.TaintNodeUnschedulable),
				Operator: pick(r, v1.TolerationOpExists, v1.TolerationOpExists, v1.TolerationOpEqual),
				Effect:   pick(r, "", v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute, v1.TaintEffectPreferNoSchedule),
			})
		}
	}
	if r.chance(15) {
		spec.NodeSelector = map[string]string{"disk": pick(r, "ssd", "hdd")}
	}
	var affinity v1.Affinity
	if r.chance(20) {
		affinity.NodeAffinity = r.nodeAffinity()
	}
	if r.chance(25) {
		affinity.PodAffinity = &v1.PodAffinity{}
		if r.chance(50) {
			affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = r.terms()
		}
		if r.chance(60) {
			affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = r.weightedTerms()
		}
	}
	if r.chance(25) {
		affinity.PodAntiAffinity = &v1.PodAntiAffinity{}
		if r.chance(50) {
			affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = r.terms()
		}
		if r.chance(60) {
			affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = r.weightedTerms()
		}
	}
	if affinity != (v1.Affinity{}) {
		spec.Affinity = &affinity
	}
	for range 2 {
		if r.chance(20) {
			spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, r.spread())
		}
	}
}

func (r *Random) selector() *metav1.LabelSelector {
	switch r.IntN(6) {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: pick(r, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)},
		}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(r, "web", "db", "cache")}}
}

func (r *Random) topologyKey() string {
	return pick(r, v1.LabelHostname, v1.LabelTopologyZone, v1.LabelTopologyZone, "rack")
}

func (r *Random) term() v1.PodAffinityTerm {
	t := v1.PodAffinityTerm{LabelSelector: r.selector(), TopologyKey: r.topologyKey()}
	switch r.IntN(5) {
	case 0:
		t.Namespaces = []string{"blue", "green"}
	case 1:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	case 2:
		t.NamespaceSelector = &metav1.LabelSelector{}
	}
	return t
}

func (r *Random) terms() []v1.PodAffinityTerm {
	terms := []v1.PodAffinityTerm{r.term()}
	if r.chance(30) {
		terms = append(terms, r.term())
	}
	return terms
}

func (r *Random) weightedTerms() []v1.WeightedPodAffinityTerm {
	var terms []v1.WeightedPodAffinityTerm
	for _, t := range r.terms() {
		terms = append(terms, v1.WeightedPodAffinityTerm{Weight: int32(1 + r.IntN(100)), PodAffinityTerm: t})
	}
	return terms
}

func (r *Random) nodeSelectorTerm() v1.NodeSelectorTerm {
	var t v1.NodeSelectorTerm
	if r.chance(25) {
		t.MatchFields = []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: pick(r, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn),
			Values: []string{pick(r, "node-1", "node-2", "node-3")},
		}}
	}
	switch r.IntN(4) {
	case 0:
		t.MatchExpressions = []v1.NodeSelectorRequirement{{Key: "rack", Operator: v1.NodeSelectorOpGt, Values: []string{"2"}}}
	case 1:
		t.MatchExpressions = []v1.NodeSelectorRequirement{{
			Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn,
			Values: []string{"z1", "z2"},
		}}
	case 2:
		t.MatchExpressions = []v1.NodeSelectorRequirement{{
			Key:      "disk",
			Operator: pick(r, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist),
		}}
	}
	return t
}

func (r *Random) nodeAffinity() *v1.NodeAffinity {
	var a v1.NodeAffinity
	if r.chance(60) {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{r.nodeSelectorTerm()}}
		if r.chance(40) {
			terms := &a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			*terms = append(*terms, r.nodeSelectorTerm())
		}
	}
	if r.chance(60) {
		for range 1 + r.IntN(2) {
			a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
				v1.PreferredSchedulingTerm{Weight: int32(1 + r.IntN(100)), Preference: r.nodeSelectorTerm()})
		}
	}
	return &a
}

func (r *Random) spread() v1.TopologySpreadConstraint {
	c := v1.TopologySpreadConstraint{
		MaxSkew: int32(1 + r.IntN(2)), TopologyKey: r.topologyKey(), LabelSelector: r.selector(),
		WhenUnsatisfiable: pick(r, v1.DoNotSchedule, v1.ScheduleAnyway),
	}
	if r.chance(20) {
		c.MatchLabelKeys = []string{"tier"}
	}
	if c.WhenUnsatisfiable == v1.DoNotSchedule && r.chance(25) {
		domains := int32(1 + r.IntN(4))
		c.MinDomains = &domains
	}
	if r.chance(30) {
		policy := pick(r, v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore)
		c.NodeAffinityPolicy = &policy
	}
	if r.chance(30) {
		policy := pick(r, v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore)
		c.NodeTaintsPolicy = &policy
	}
	return c
}
