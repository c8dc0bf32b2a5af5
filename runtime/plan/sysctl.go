package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/coracle-project/coracle/runtime/validate"
)

// sysctls sets kernel parameters, those of the container's namespaces only.
func (b *builder) sysctls() error {
	l := b.spec.Linux
	for _, n := range slices.Sorted(maps.Keys(l.Sysctl)) {
		if err := validate.Sysctl(l, n); err != nil {
			return err
		}
		b.add(WriteProc{Path: "sys/" + validate.SysctlPath(n), Value: l.Sysctl[n], What: fmt.Sprintf("set sysctl %s to %s", n, l.Sysctl[n])})
	}
	return nil
}
