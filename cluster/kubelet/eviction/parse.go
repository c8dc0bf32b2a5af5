package eviction

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
)

// ParseHard reads a Policy's hard thresholds in the form that upstream's kubelet takes them:
// "memory.available<100Mi,nodefs.available<5%". As there, they replace the default ones, all of
// them, so that a signal that is not named is not watched; nor is one whose threshold is 0% or
// 100%.
func ParseHard(text string) (map[evictionapi.Signal]evictionapi.ThresholdValue, error) {
	hard := map[evictionapi.Signal]evictionapi.ThresholdValue{}
	var named []string
	for part := range strings.SplitSeq(text, ",") {
		name, amount, _ := strings.Cut(part, "<")
		name, amount = strings.TrimSpace(name), strings.TrimSpace(amount)
		if !slices.ContainsFunc(signals, func(s signal) bool { return string(s.name) == name }) {
			return nil, fmt.Errorf("eviction threshold %q: it starts with none of %s", part, signalNames())
		}
		if slices.Contains(named, name) {
			return nil, fmt.Errorf("eviction threshold %q: %s has one already", part, name)
		}
		named = append(named, name)
		value, watched, err := parseAmount(amount)
		if err != nil {
			return nil, fmt.Errorf("eviction threshold %q: %w", part, err)
		}
		if watched {
			hard[evictionapi.Signal(name)] = value
		}
	}
	return hard, nil
}

// parseAmount reads a quantity or a share; watched is false for the shares that say that there is
// none.
func parseAmount(text string) (value evictionapi.ThresholdValue, watched bool, err error) {
	if share, is := strings.CutSuffix(text, "%"); is {
		percent, err := strconv.ParseFloat(share, 32)
		if err != nil || !(percent >= 0 && percent <= 100) { // NaN is neither
			return value, false, fmt.Errorf("%q is no share from 0%% to 100%%", text)
		}
		value.Percentage = float32(percent) / 100
		return value, value.Percentage > 0 && value.Percentage < 1, nil
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() <= 0 {
		return value, false, fmt.Errorf("%q is no amount above 0, such as 100Mi or 5%%", text)
	}
	value.Quantity = &quantity
	return value, true, nil
}

func signalNames() string {
	var names []string
	for _, s := range signals {
		names = append(names, string(s.name))
	}
	return strings.Join(names, ", ")
}
