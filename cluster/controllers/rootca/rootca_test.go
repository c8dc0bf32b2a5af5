package rootca

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

func TestEveryNamespaceHasTheAuthority(t *testing.T) {
	ctx := context.Background()
	ca := &changing{pem: "CA"}
	apitest.Ours(func(set *client.Set) *frame.Controller {
		return New(set, set.Kube, ca)
	}).As("root-ca-cert-publisher").Run(t, func(t *testing.T, s *apitest.Server) {
		published := func() *corev1.ConfigMap {
			t.Helper()
			m, err := s.Kube.CoreV1().ConfigMaps("web").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if m.Data["ca.crt"] != ca.pem || len(m.Data) != 1 || m.Annotations["kubernetes.io/description"] == "" {
				t.Errorf("it has %v, annotations %v", m.Data, m.Annotations)
			}
			return m
		}
		for name, phase := range map[string]corev1.NamespacePhase{"web": corev1.NamespaceActive, "going": corev1.NamespaceTerminating} {
			if _, err := s.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: phase},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s.Settle()
		m := published()
		m.Data = map[string]string{"ca.crt": "another", "more": "of it"}
		if _, err := s.Kube.CoreV1().ConfigMaps("web").Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		published()
		if err := s.Kube.CoreV1().ConfigMaps("web").Delete(ctx, m.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		published()
		if list, err := s.Kube.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("%d ConfigMaps, %v", len(list.Items), err)
		}
		ca.change("another CA")
		s.Settle()
		published()
		if w := s.Writes(); w["create configmaps"] != 2 || w["update configmaps"] != 2 || len(w) != 2 {
			t.Errorf("writes: %v", w)
		}
	})
}

// changing is an Authority that the test changes while the controllers are idle.
type changing struct {
	pem       string
	listeners []dynamiccertificates.Listener
}

func (c *changing) CurrentCABundleContent() []byte             { return []byte(c.pem) }
func (c *changing) AddListener(l dynamiccertificates.Listener) { c.listeners = append(c.listeners, l) }

func (c *changing) change(pem string) {
	c.pem = pem
	for _, l := range c.listeners {
		l.Enqueue()
	}
}
