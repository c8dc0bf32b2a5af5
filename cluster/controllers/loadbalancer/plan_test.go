package loadbalancer

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/loadbalancer"
)

// BenchmarkPlan plans with 10,000 Services, none of which, or all, have addresses already.
func BenchmarkPlan(b *testing.B) {
	pool, err := loadbalancer.ParsePool([]string{"10.0.0.0/16", "fd00::/64"})
	if err != nil {
		b.Fatal(err)
	}
	for _, have := range []bool{false, true} {
		b.Run(map[bool]string{false: "new", true: "kept"}[have], func(b *testing.B) {
			var services []*corev1.Service
			for i := range 10_000 {
				s := balancer(fmt.Sprintf("s%d", i), dual)
				s.UID, s.CreationTimestamp = types.UID(s.Name), metav1.NewTime(time.Unix(int64(i), 0))
				if have {
					having(fmt.Sprintf("10.0.%d.%d", i/200, i%200+1), fmt.Sprintf("fd00::%x", i+1))(s)
				}
				services = append(services, s)
			}
			for b.Loop() {
				all := requests(services)
				fromPool(pool, all, nil)
				if last := all[len(all)-1].outcome; len(last.addresses) != 2 {
					b.Fatalf("the last one has %v, %v", last.addresses, last.problems)
				}
			}
		})
	}
}
