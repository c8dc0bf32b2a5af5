package eviction

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
)

func TestThresholdsAreReadAsUpstreamReadsThem(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"memory.available<100Mi", "memory.available<100Mi"},
		{"nodefs.available<5%, imagefs.available < 2.5%", "imagefs.available<2.5% nodefs.available<5%"},
		{"nodefs.inodesFree<1000,imagefs.inodesFree<1k", "imagefs.inodesFree<1k nodefs.inodesFree<1k"},
		{"memory.available<0%", ""},
		{"memory.available<1Gi,nodefs.available<100%", "memory.available<1Gi"},
	} {
		hard, err := ParseHard(test.text)
		var got []string
		for name, value := range hard {
			amount := fmt.Sprintf("%g%%", value.Percentage*100)
			if value.Quantity != nil {
				amount = value.Quantity.String()
			}
			got = append(got, string(name)+"<"+amount)
		}
		slices.Sort(got)
		if err != nil || hard == nil || strings.Join(got, " ") != test.want {
			t.Errorf("%s is %q, %v", test.text, got, err)
		}
	}
}

func TestWrongThresholds(t *testing.T) {
	for text, want := range map[string]string{
		"":                                        `eviction threshold "": it starts with none of memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree`,
		"pid.available<5%":                        `eviction threshold "pid.available<5%": it starts with none of memory.available`,
		"memory.available<100Mi,":                 `eviction threshold "": it starts with none of`,
		"memory.available=100Mi":                  `eviction threshold "memory.available=100Mi": it starts with none of`,
		"memory.available":                        `"" is no amount above 0, such as 100Mi or 5%`,
		"memory.available<0":                      `"0" is no amount above 0`,
		"memory.available<-1Gi":                   `"-1Gi" is no amount above 0`,
		"memory.available<lots":                   `"lots" is no amount above 0`,
		"nodefs.available<101%":                   `"101%" is no share from 0% to 100%`,
		"nodefs.available<-1%":                    `"-1%" is no share`,
		"nodefs.available<NaN%":                   `"NaN%" is no share`,
		"nodefs.available<%":                      `"%" is no share`,
		"nodefs.available<1%,nodefs.available<2%": `eviction threshold "nodefs.available<2%": nodefs.available has one already`,
	} {
		if hard, err := ParseHard(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s is %v, %v", text, hard, err)
		}
	}
}

// Thresholds that are named replace the default ones: a node without memory and disk is short of
// nothing that no one watches.
func TestOnlyWhatIsNamedIsWatched(t *testing.T) {
	seen := observations{}
	for _, s := range signals {
		seen[s.name] = figure{available: 1, capacity: 1000}
	}
	for text, want := range map[string]int{"memory.available<0%": 0, "nodefs.available<5%": 1, "nodefs.available<5%,memory.available<2": 2} {
		hard, err := ParseHard(text)
		if err != nil {
			t.Fatal(err)
		}
		if met := (Policy{Hard: hard}).withDefaults().met(seen); len(met) != want {
			t.Errorf("%s: short of %v", text, met)
		}
	}
	if met := (Policy{}).withDefaults().met(seen); len(met) != len(signals) {
		t.Errorf("by default: short of %v", met)
	}
}

func FuzzParseHard(f *testing.F) {
	for _, seed := range []string{
		"memory.available<100Mi,nodefs.available<5%", "imagefs.inodesFree<1e9", "nodefs.available<0%",
		"nodefs.available<1e-12%", "<,<%",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		hard, err := ParseHard(text)
		if err != nil && hard != nil {
			t.Errorf("%v with %v", hard, err)
		}
		for name, value := range hard {
			least := evictionapi.GetThresholdQuantity(value, resource.NewQuantity(1<<40, resource.BinarySI))
			if least.Sign() < 0 || value.Quantity != nil && least.IsZero() { // of a share it may be less than a byte
				t.Errorf("%s: the least is %v", name, least)
			}
		}
	})
}
