package proxy

import (
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/proxy/rules"
)

// Regression: while the connection tracker could not be read, the names of all ports of Services
// that had ever been there were kept.
func TestPortsThatAreGoneAreNotLookedFor(t *testing.T) {
	tr := newTranslation(corev1.IPv4Protocol, &Options{WatchPods: true, Log: slog.New(slog.DiscardHandler)})
	update := func() {
		tr.update(nil, false, &rules.Change{Ports: map[rules.Key]*rules.Port{}}, nil)
	}
	for i := range 10 {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("s%d", i)},
			Spec: corev1.ServiceSpec{
				ClusterIP: fmt.Sprintf("10.96.0.%d", i+1), ClusterIPs: []string{fmt.Sprintf("10.96.0.%d", i+1)},
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
			},
		}
		tr.serviceChanged(nil, s)
		update()
		if len(tr.connections) != 1 {
			t.Fatalf("looked for are %v, want those of %s", tr.connections, s.Name)
		}
		tr.serviceChanged(s, nil)
		update()
	}
	if len(tr.connections) != 0 {
		t.Errorf("looked for are %v, and all Services are gone", tr.connections)
	}
}
