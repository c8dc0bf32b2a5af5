package loadbalancer

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// Another controller that gives the same Services addresses is told to the user and not fought. One
// change is corrected.
func TestAnotherControllerIsNotFought(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1-10.0.0.9"}, func(a api) {
		a.add(balancer("a", v4), balancer("b", v4))
		overwrite := func() {
			s, err := a.Kube.CoreV1().Services(apitest.Namespace).Get(context.Background(), "a", metav1.GetOptions{})
			if err == nil {
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}
				_, err = a.Kube.CoreV1().Services(apitest.Namespace).UpdateStatus(context.Background(), s, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			a.Settle()
		}
		for range mostUndone {
			overwrite()
			a.want("a", "10.0.0.1")
		}
		a.Writes()
		for range 10 {
			overwrite()
			a.want("a", "192.0.2.9")
		}
		if n := a.Writes(); len(n) != 0 {
			t.Errorf("it still writes %v", n)
		}
		a.told(reasonOther, "--load-balancer-cidr none")
		a.want("b", "10.0.0.2") // nothing is wrong with others
		a.change("a", wanting("10.0.0.7"))
		a.want("a", "10.0.0.7") // a wish is followed
	})
}

// One Service whose status cannot be written does not keep others from theirs, and no address is
// given twice.
func TestAFailedWriteIsRepeated(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1-10.0.0.9"}, func(a api) {
		failed := 0
		a.Refuse(func(_, resource string) error {
			if resource == "services/status" && failed == 0 {
				failed++
				return errors.New("no")
			}
			return nil
		})
		a.add(balancer("a", v4), balancer("b", v4))
		a.Pass(time.Minute)
		a.want("a", "10.0.0.1", "b", "10.0.0.2")
		if failed != 1 {
			t.Error("nothing has failed")
		}
	})
}

// Writes that fail are no other controller's work.
func TestFailedWritesAreNoOtherController(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1"}, func(a api) {
		a.add(balancer("a", v4))
		a.want("a", "10.0.0.1")
		failed := 0
		a.Refuse(func(_, resource string) error {
			if resource == "services/status" && failed <= mostUndone {
				failed++
				return errors.New("no")
			}
			return nil
		})
		s, err := a.Kube.CoreV1().Services(apitest.Namespace).Get(context.Background(), "a", metav1.GetOptions{})
		if err == nil {
			s.Status.LoadBalancer.Ingress = nil
			_, err = a.Kube.CoreV1().Services(apitest.Namespace).UpdateStatus(context.Background(), s, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		a.Pass(time.Minute)
		if failed <= mostUndone {
			t.Errorf("%d writes have failed", failed)
		}
		a.want("a", "10.0.0.1")
	})
}

// The writer may die after any write.
func TestCrashesGiveNoAddressTwice(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1-10.0.0.3"}, func(a api) {
		for i, name := range []string{"a", "b", "c"} {
			a.CrashAfter(1)
			a.add(balancer(name, v4))
			if !a.Crashed() {
				t.Fatal("nothing was written")
			}
			a.Restart()
			a.want(name, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}[i])
		}
	})
}
