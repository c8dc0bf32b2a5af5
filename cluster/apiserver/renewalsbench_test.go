package apiserver

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// protobufClient is an administrator's client that dials, as kubelets' do.
func protobufClient(b *testing.B) *kubernetes.Clientset {
	b.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", server.options.PKI.AdminKubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	config.Host, config.QPS = "https://"+server.Address().String(), -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	return client
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRenewal renews the leases of nodes. The CPU time is that of server and client.
func BenchmarkRenewal(b *testing.B) {
	client := protobufClient(b).CoordinationV1().Leases(corev1.NamespaceNodeLease)
	seconds := int32(40)
	leases := make([]*coordv1.Lease, 100)
	for i := range leases {
		name, now := fmt.Sprintf("bench-%d", i), metav1.NowMicro()
		_ = client.Delete(b.Context(), name, metav1.DeleteOptions{})
		var err error
		if leases[i], err = client.Create(b.Context(), &coordv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       coordv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	used := cpuTime()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		l := leases[i%len(leases)]
		now := metav1.NowMicro()
		l.Spec.RenewTime = &now
		var err error
		if leases[i%len(leases)], err = client.Update(b.Context(), l, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime()-used).Microseconds())/float64(b.N), "cpu-µs/op")
}
