package workload

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// selection is the flags by which lists are narrowed.
type selection struct {
	namespace string
	labels    []string
}

func (s *selection) define(w *workload, cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", "only pods of this namespace")
	cmd.Flags().StringArrayVarP(&s.labels, "label", "l", nil, "only pods with this label, as `KEY=VALUE` or KEY; may be given again")
	_ = cmd.RegisterFlagCompletionFunc("namespace", w.machine.Settled(w.complete(true, func(all inventory) []string {
		var names []string
		for _, p := range all.pods {
			names = append(names, p.GetMetadata().GetNamespace())
		}
		return names
	})))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		for _, l := range s.labels {
			if key, _, _ := strings.Cut(l, "="); key == "" {
				return fmt.Errorf("--label %q: it is KEY=VALUE or KEY", l)
			}
		}
		return nil
	}
}

// matches says whether a pod is meant.
func (s *selection) matches(p *runtimeapi.PodSandbox) bool {
	if s.namespace != "" && p.GetMetadata().GetNamespace() != s.namespace {
		return false
	}
	for _, l := range s.labels {
		key, value, exact := strings.Cut(l, "=")
		if got, has := p.GetLabels()[key]; !has || exact && got != value {
			return false
		}
	}
	return true
}
